"""The hub's process: read an order, fork, do it in the child, tell how it ended.

A fork has everything imported already: starting an interpreter for each try would take longer than
the try.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import docker

import gpuspawner
from gpuspawner.refusal import GPURefusal
from real_spawner import RealHub

PEOPLE = ("ada", "ben", "cy", "dan")
PRODUCT = str(Path(gpuspawner.__file__).parent)


class Lines:
    """Counts the lines of the product that this process executes, in all threads.

    Args:
        kill_at: SIGKILL before this one; 0 for never.
    """

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        #: The number of each line when it came first.
        self.first: dict[tuple[str, int], int] = {}
        self._kill_at = kill_at
        self._lock = threading.Lock()

    def begin(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def end(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        # Asked at each call; what is not the product's is not traced any further.
        return self._line if frame.f_code.co_filename.startswith(PRODUCT) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            with self._lock:
                self.count += 1
                self.first.setdefault((frame.f_code.co_filename, frame.f_lineno), self.count)
                if self.count == self._kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def make_hub(order: dict[str, Any], **pool: Any) -> RealHub:
    return RealHub(
        Path(order["folder"]),
        client=lambda: docker.APIClient(base_url=order["url"], version="auto"),
        database=f"sqlite:///{order['folder']}/hub.sqlite",
        **{"inventory": {"simulated": order["cards"]}, **pool},
    )


async def prepare(folder: str) -> None:
    """Make a database with people in it, and so have everything imported before the first fork."""
    hub = make_hub({"folder": folder, "url": "unix:///none", "cards": 1})
    for name in PEOPLE:
        hub.user(name)
    hub.close()


async def live(order: dict[str, Any]) -> dict[str, Any]:
    """A server runs; another is started, polled and stopped while lines are counted."""
    hub = make_hub(order)
    await hub.start("ben")
    lines = Lines(order["kill_at"])
    lines.begin()
    await hub.start("ada")
    await hub.poll("ada")
    await hub.stop("ada")
    lines.end()
    return {"lines": lines.count, "first": sorted(lines.first.values())}


async def live_on(order: dict[str, Any]) -> dict[str, Any]:
    """The next hub process: what it believes, whether every card can be had, and the end."""
    hub = make_hub(order, orphan_grace_seconds=0.0)
    told: dict[str, Any] = {}
    await hub.restart()
    await hub.pool.cleaner.clean()
    await until_idle(hub)
    told["after restart"] = running(hub)
    told["present"] = sorted(row.id for row in (await hub.pool.engine.listing()).rows)
    for name in ("ada", "cy"):
        if not hub.spawner(name).server:
            await hub.start(name)
    told["all"] = running(hub)
    try:
        await hub.start("dan")
    except GPURefusal as refusal:
        told["one more"] = refusal.refusal_reason
    told["addresses"] = [hub.spawner(name).server.ip for name in told["all"]]
    for name in told["all"]:
        await hub.stop(name)
    await until_idle(hub)
    return told


async def until_idle(hub: RealHub) -> None:
    while not hub.idle or hub.pool.cleaner._removals:
        await asyncio.sleep(0.005)


def running(hub: RealHub) -> dict[str, str]:
    """User → container, of the servers that the hub shows as running."""
    return {
        user.name: str(spawner.object_id)
        for user in hub._users.values()
        for spawner in user.spawners.values()
        if spawner.server
    }


WHAT: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "live": live,
    "live_on": live_on,
}


def write_to(log: Path) -> None:
    """All that this process prints goes there."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)


def do(order: dict[str, Any]) -> None:
    write_to(Path(order["folder"], "log"))

    async def work() -> dict[str, Any]:
        return await WHAT[order["what"]](order)

    told = asyncio.run(work())
    Path(order["folder"], "told").write_text(json.dumps(told))
    sys.stderr.flush()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    write_to(Path(sys.argv[1], "log"))
    asyncio.run(prepare(sys.argv[1]))
    print("ready", file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                do(order)
                status = 0
            except BaseException:  # noqa: BLE001 - into the log
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            finally:
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(ended), file=answers)


if __name__ == "__main__":
    main()
