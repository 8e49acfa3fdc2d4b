"""The hub's random id, kept in a file beside the hub's database.

It tells this hub's containers from another's on the same engine. It must survive a restart (else
every running server becomes somebody else's) and must not be copied to a second hub.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path

from .errors import ConfigError

_FORM = re.compile(r"[0-9a-f]{32}")


def read_hub_id(path: Path) -> str:
    """The id in the file, which is made (mode 0600) where there is none.

    Raises:
        ConfigError: the file can't be read or written, or holds something else.
    """
    try:
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise ConfigError(
            f"the hub's id file {path} can't be used: {error}. It must stay the same over "
            "restarts; set c.GPUPool.hub_id_file to a path that the hub may write and keeps."
        ) from error


def _make(path: Path) -> None:
    """Write a fresh id; one that another process wrote meanwhile stays."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(16) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link appears whole or not at all, and never over an existing file.
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()


def find_hub_id(path: Path) -> str:
    """The id in the file; empty if there is none or it may not be read. Never makes one.

    Raises:
        ConfigError: the file holds something else.
    """
    try:
        return _read(path)
    except OSError:
        return ""


def _read(path: Path) -> str:
    text = path.read_text(errors="replace").strip()
    if not _FORM.fullmatch(text):
        raise ConfigError(
            f"the hub's id file {path} holds {text[:40]!r} instead of 32 hexadecimal digits. "
            "Restore it from a backup; or, with all servers of this hub stopped, delete it."
        )
    return text
