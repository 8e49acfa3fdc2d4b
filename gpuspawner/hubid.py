"""The hub's random id, kept in a file beside the hub's database.

It tells this hub's containers from another's on the same engine. It must survive a restart (else
every running server becomes somebody else's) and must not be copied to a second hub.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from .errors import ConfigError

_FORM = re.compile(r"[0-9a-f]{32}")


def read_hub_id(path: Path) -> str:
    """The id in the file, which is made (mode 0600) where there is none.

    Raises:
        ConfigError: the file can't be read or written, or holds something else.
    """
    try:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read(path)
        fresh = secrets.token_hex(16)
        with os.fdopen(handle, "w") as file:
            file.write(fresh + "\n")
            file.flush()
            os.fsync(file.fileno())
        return fresh
    except OSError as error:
        raise ConfigError(
            f"the hub's id file {path} can't be used: {error}. It must stay the same over "
            "restarts; set c.GPUPool.hub_id_file to a path that the hub may write and keeps."
        ) from error


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
    text = path.read_text().strip()
    if not _FORM.fullmatch(text):
        raise ConfigError(
            f"the hub's id file {path} holds {text[:40]!r} instead of 32 hexadecimal digits. "
            "Restore it from a backup; or, with all servers of this hub stopped, delete it."
        )
    return text
