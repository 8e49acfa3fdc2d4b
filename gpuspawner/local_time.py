"""The time by the hub's own clock, in a zone that knows when clocks are changed."""

from __future__ import annotations

import os
from datetime import datetime, tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

_LOCALTIME = Path("/etc/localtime")


def local_now() -> datetime:
    """Now, in the machine's zone (``TZ``, else ``/etc/localtime``)."""
    zone = _zone(os.environ.get("TZ", ""))
    return datetime.now(zone) if zone else datetime.now().astimezone()


@cache
def _zone(name: str) -> tzinfo | None:
    """The zone by name, or the machine's; None where only its distance from UTC is known."""
    try:
        name = name.removeprefix(":")
        if name and not name.startswith("/"):
            return ZoneInfo(name)
        # ``TZ=:/etc/localtime`` is what many systems advise.
        with Path(name or _LOCALTIME).open("rb") as file:
            return ZoneInfo.from_file(file, key="localtime")
    except (OSError, ValueError, KeyError):
        return None
