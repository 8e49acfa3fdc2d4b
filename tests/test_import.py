"""Importing the package is cheap, touches nothing, and has what others rely on."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

import gpuspawner

ROOT = Path(__file__).resolve().parents[1]


def run(code: str) -> str:
    """Run code in a fresh interpreter, warnings being errors, and return what it prints."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_the_import_alone_loads_none_of_the_heavy_parts() -> None:
    loaded = run(
        "import sys; before = set(sys.modules); import gpuspawner; "
        "print(*sorted(set(sys.modules) - before))"
    ).split()
    assert "gpuspawner" in loaded
    heavy = ("docker", "dockerspawner", "jupyterhub", "pynvml", "traitlets", "rich", "tornado")
    assert [name for name in loaded if name.partition(".")[0] in heavy] == []
    assert [name for name in loaded if name.startswith("gpuspawner.")] == []


def test_loading_every_part_touches_no_engine_and_no_driver() -> None:
    # An audit hook sees every socket, process and file that Python opens.
    seen = run(
        "import sys\n"
        "import docker, dockerspawner, jupyterhub.app, rich.table\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, args: event in "
        "('socket.connect', 'subprocess.Popen', 'os.posix_spawn', 'os.fork', 'ctypes.dlopen') "
        "and seen.append((event, args)))\n"
        "import gpuspawner, gpuspawner.cli\n"
        "for name in gpuspawner.__all__: getattr(gpuspawner, name)\n"
        "print(seen)"
    )
    assert seen == "[]"


def test_public_names() -> None:
    assert set(gpuspawner.__all__) <= set(dir(gpuspawner))
    from dockerspawner import DockerSpawner

    assert issubclass(gpuspawner.GPUSpawner, DockerSpawner)
    assert gpuspawner.GPUPool.__name__ == "GPUPool"
    assert callable(gpuspawner.configure)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        gpuspawner.nothing  # noqa: B018


def test_one_version() -> None:
    metadata = ConfigParser(interpolation=None)
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == gpuspawner.__version__


def test_entry_points_lead_somewhere() -> None:
    metadata = ConfigParser(interpolation=None)
    metadata.read(ROOT / "setup.cfg")
    for group in metadata["options.entry_points"].values():
        for line in group.strip().splitlines():
            module, _, name = line.partition("=")[2].strip().partition(":")
            run(f"import {module}; assert {module}.{name}")


def test_types_are_published() -> None:
    assert (ROOT / "gpuspawner" / "py.typed").is_file()
