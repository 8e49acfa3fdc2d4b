"""A look into a running container, by a short script that the engine runs there as root.

No file of the user has a say in it: absolute path, folder ``/``, a non-interactive shell that reads
no start-up file, and no variable by which a loader or shell would load something. Root so that it
sees what the container may do, not what its user may; it has no more rights than the container.

Docker's own client waits for a command without end; here everything has a deadline.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import Final

from docker.errors import APIError

from .connection import NO_ANSWER
from .engine import Engine
from .sight import SCRIPT, Seen, read_look
from .waiting import within

#: Cards without persistence mode take seconds to open.
DEADLINE_SECONDS: Final = 10.0
_MOST_BYTES = 65536
#: One at a time: a shell that drips must not hold up the look at the clock.
_CHUNK_BYTES = 1
_HEADER_BYTES = 8
_ENVIRONMENT = [
    "PATH=/usr/bin:/bin",
    "LC_ALL=C",
    *(f"{name}=" for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "ENV", "BASH_ENV")),
]


class Unseen(Exception):
    """No look was possible; the text says why. It tells nothing of the container's cards."""


async def look(engine: Engine, container_id: str) -> Seen:
    """Look into a running container.

    Raises:
        Unseen: it has no shell, the engine refused or gave no answer, or it took too long.
    """
    try:
        # The threads may be busy, so that the work's own deadline has not begun yet.
        return await within(engine.run(_look, engine, container_id), 2 * DEADLINE_SECONDS)
    except asyncio.TimeoutError:
        raise Unseen(_slow()) from None


def _slow() -> str:
    return f"it took longer than {DEADLINE_SECONDS:g} s"


def _look(engine: Engine, container_id: str) -> Seen:
    try:
        output = _run(engine, container_id, ["/bin/sh", "-c", SCRIPT])
    except APIError as error:
        raise Unseen(str(error.explanation or error)) from error
    except NO_ANSWER as error:
        raise Unseen(f"the engine gave no answer ({type(error).__name__})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Unseen(f"the engine's answer can't be read ({type(error).__name__})") from error
    seen = read_look(output)
    if seen is None:
        raise Unseen(f"its shell did not do as it was told: {output.strip()[-200:]!r}")
    return seen


def _run(engine: Engine, container_id: str, command: list[str]) -> str:
    """Run a command in a container, in the calling thread; what it wrote to stdout."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    wanted = {
        "AttachStdout": True,
        "Cmd": command,
        "Env": _ENVIRONMENT,
        "User": "0:0",
        "WorkingDir": "/",
    }
    created = engine.post(f"/containers/{container_id}/exec", wanted, timeout=DEADLINE_SECONDS)
    path = f"/exec/{created.json()['Id']}/start"
    data = b""
    started = engine.post(path, {"Detach": False}, timeout=DEADLINE_SECONDS, stream=True)
    with closing(started):
        for chunk in started.iter_content(_CHUNK_BYTES):
            data += chunk
            if time.monotonic() > deadline or len(data) > _MOST_BYTES:
                raise Unseen(_slow())
    return _text(data)


def _text(data: bytes) -> str:
    """The engine's frames (kind, three zeros, length, bytes) put together."""
    parts = []
    while len(data) >= _HEADER_BYTES:
        end = _HEADER_BYTES + int.from_bytes(data[4:_HEADER_BYTES], "big")
        parts.append(data[_HEADER_BYTES:end])
        data = data[end:]
    return b"".join(parts).decode(errors="replace")
