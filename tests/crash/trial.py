"""One try: a hub is killed before a line, the next one takes over, and the engine is looked at."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from fakes.docker_machine import FakeMachine
from fakes.docker_server import Served, served

CARDS = 3
DATABASE = "hub.sqlite"


_ROOT = Path(__file__).resolve().parents[2]
#: Where the child finds the product and the tests' own modules, however pytest was started.
_PATHS = (str(_ROOT), str(_ROOT / "script"), str(_ROOT / "tests"))


class Broken(AssertionError):
    """A law was broken; the text has the line and the logs."""


class Trials:
    """Makes tries, with one process that forks a hub for each."""

    def __enter__(self) -> Trials:  # noqa: PYI034 - never subclassed
        with ExitStack() as ends:
            # In memory where there is such a place: a hub commits a hundred times in a life. And
            # short: the path of a socket has to fit into some 100 characters.
            place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            made = tempfile.TemporaryDirectory(prefix="crash", dir=place)
            self.folder = Path(ends.enter_context(made))
            self._hub = ends.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "crash.child", str(self.folder)],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_PATHS)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert self._hub.stdout is not None
            if self._hub.stdout.readline() != "ready\n":
                log = self.folder / "log"
                raise Broken(log.read_text() if log.exists() else "the hub's process did not begin")
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It ends at the end of its input.
        self._ends.__exit__(kind, error, trace)

    @contextmanager
    def _engine(self) -> Iterator[tuple[FakeMachine, Served]]:
        """A new engine, and a new folder for the hub."""
        shutil.rmtree(self.folder / "hub", ignore_errors=True)
        (self.folder / "hub").mkdir()
        shutil.copy(self.folder / DATABASE, self.folder / "hub" / DATABASE)
        machine = FakeMachine()
        with served(machine, self.folder / "engine") as server:
            yield machine, server

    def _do(self, what: str, url: str, kill_at: int = 0) -> int:
        """Have it done; the exit status of the process that did."""
        assert self._hub.stdin is not None
        assert self._hub.stdout is not None
        order = {
            "what": what,
            "url": url,
            "kill_at": kill_at,
            "cards": CARDS,
            "folder": str(self.folder / "hub"),
        }
        self._hub.stdin.write(json.dumps(order) + "\n")
        self._hub.stdin.flush()
        return int(self._hub.stdout.readline())

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "hub" / "told").read_text())
        return told

    def lines(self) -> tuple[int, list[int]]:
        """How many lines a whole life executes, and which of them are there for the first time."""
        with self._engine() as (_, server):
            if self._do("live", server.url) != 0:
                raise Broken(self._log())
        told = self._told()
        return told["lines"], told["first"]

    def try_line(self, kill_at: int) -> bool:
        """Kill the hub before that line, and let another one take over.

        Returns:
            False if it was not killed, since it executed fewer lines.

        Raises:
            Broken: a law was broken.
        """
        with self._engine() as (machine, server):
            status = self._do("live", server.url, kill_at)
            if status == 0:
                return False
            try:
                self._check(machine, server, status)
            except (AssertionError, LookupError) as error:
                raise Broken(f"killed before line {kill_at}: {error}\n{self._log()}") from error
        return True

    def _check(self, machine: FakeMachine, server: Served, status: int) -> None:
        assert status == -signal.SIGKILL, f"the hub ended with {status}"
        server.wait_idle()
        [ben] = [c for c in machine.containers.values() if c.labels["gpuspawner.user"] == "ben"]
        machine.advance(1000)
        assert self._do("live_on", server.url) == 0, "the next hub has failed"
        told = self._told()
        assert told["after restart"]["ben"] == ben.id, "a running server was lost"
        assert set(told["after restart"]) <= {"ada", "ben"}
        assert told["present"] == sorted(told["after restart"].values()), "strays, or ghosts"
        assert set(told["all"]) == {"ada", "ben", "cy"}, "not every card can be had"
        assert told["one more"] == "no-free-gpu"
        assert len(set(told["addresses"])) == CARDS
        assert not machine.violations, machine.violations
        assert not machine.containers, "left at the end"

    def _log(self) -> str:
        return (self.folder / "hub" / "log").read_text()
