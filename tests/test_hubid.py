"""The hub's id: made once, kept, never guessed."""

from __future__ import annotations

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuspawner.errors import ConfigError
from gpuspawner.hubid import find_hub_id, read_hub_id


def test_it_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "id"
    first = read_hub_id(path)
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert read_hub_id(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_hub_id(tmp_path / "other") != first
    assert len(list(tmp_path.iterdir())) == 2


def test_many_that_start_together_agree(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / str(number)
        with ThreadPoolExecutor(8) as threads:
            found = set(threads.map(read_hub_id, [path] * 8))
        assert len(found) == 1


@pytest.mark.parametrize("text", [b"", b"\n", b"abc", b"g" * 32, b"A" * 32, b"\xff\xfe", b"0" * 33])
def test_something_else_in_the_file_is_refused_with_the_fix(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "id"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match="32 hexadecimal digits") as told:
        read_hub_id(path)
    assert str(path) in str(told.value)
    assert path.read_bytes() == text, "never overwritten: every running server would be lost"
    with pytest.raises(ConfigError):
        find_hub_id(path)


def test_a_folder_that_is_not_there_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c\.GPUPool\.hub_id_file"):
        read_hub_id(tmp_path / "no" / "id")
    with pytest.raises(ConfigError, match=r"c\.GPUPool\.hub_id_file"):
        read_hub_id(tmp_path)


def test_looking_for_it_makes_none(tmp_path: Path) -> None:
    assert find_hub_id(tmp_path / "id") == ""
    assert not (tmp_path / "id").exists()
    made = read_hub_id(tmp_path / "id")
    assert find_hub_id(tmp_path / "id") == made
