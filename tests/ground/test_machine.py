"""The machine's own package sources, read in both of apt's formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ground.machine import AptSource, GroundError, apt_sources, distribution_source, run


def make_root(tmp_path: Path, files: dict[str, str], codename: str = "bookworm") -> Path:
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text(f'ID=debian\nVERSION_CODENAME="{codename}"\n')
    for name, text in files.items():
        (tmp_path / "etc/apt" / name).write_text(text)
    return tmp_path


def test_stanzas_with_comments_lists_and_folded_lines(tmp_path: Path) -> None:
    text = """\
Types: deb deb-src
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian.gpg

Enabled: no
Types: deb
URIs: http://other.example/debian
Suites: bookworm
Components: main
"""
    root = make_root(tmp_path, {"sources.list.d/debian.sources": text})
    assert apt_sources(root) == [
        AptSource(
            uri="http://mirror.example/debian",
            suites=("bookworm", "bookworm-updates"),
            components=("main", "contrib"),
            signed_by="/usr/share/keyrings/debian.gpg",
        )
    ]


def test_a_key_written_into_a_stanza_is_no_path(tmp_path: Path) -> None:
    text = (
        "Types: deb\nURIs: http://mirror.example\nSuites: bookworm\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY\n"
    )
    root = make_root(tmp_path, {"sources.list.d/debian.sources": text})
    assert distribution_source(root).signed_by == ""


def test_one_line_format_with_options_and_comments(tmp_path: Path) -> None:
    text = """\
# deb http://commented.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb [arch=amd64 trusted=yes signed-by=/k.gpg] http://mirror.example/debian bookworm main # here
deb http://third.example/tool stable main
"""
    root = make_root(tmp_path, {"sources.list": text})
    assert distribution_source(root) == AptSource(
        uri="http://mirror.example/debian",
        suites=("bookworm",),
        components=("main",),
        signed_by="/k.gpg",
        trusted=True,
    )


def test_no_source_of_the_distribution_says_what_was_looked_for(tmp_path: Path) -> None:
    root = make_root(
        tmp_path, {"sources.list.d/tool.list": "deb http://third.example/tool stable main\n"}
    )
    with pytest.raises(GroundError, match="suite 'bookworm' with component 'main'"):
        distribution_source(root)


def test_a_failed_command_shows_its_output() -> None:
    with pytest.raises(GroundError, match=r"ended with 3:\nno such thing"):
        run(["sh", "-c", "echo no such thing >&2; exit 3"])
