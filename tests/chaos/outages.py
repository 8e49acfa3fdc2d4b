"""Ends of hubs and of the engine, and a bad line between them."""

from __future__ import annotations

import random

from ground.engine import Engine
from ground.hub import Hub
from ground.injector import Injector
from ground.injector_faults import KINDS

from .noise import Doing

#: Generous: the machine may be many times slower than this needs.
START_SECONDS = 300.0


class EngineOutages:
    """Deeds on dockerd; containers outlive it."""

    def __init__(self, engine: Engine, doing: Doing) -> None:
        self._engine, self._doing = engine, doing

    def kill(self, dice: random.Random) -> None:
        self._doing.tell("dockerd killed")
        self._engine.kill()
        self._doing.pause(dice.uniform(0, 3))
        self._engine.start_daemon(START_SECONDS)
        self._doing.tell("dockerd started")

    def restart(self, dice: random.Random) -> None:
        self._doing.tell("dockerd ended")
        self._engine.stop_daemon()
        self._doing.pause(dice.uniform(0, 3))
        self._engine.start_daemon(START_SECONDS)
        self._doing.tell("dockerd started")

    def freeze(self, dice: random.Random) -> None:
        self._doing.tell("dockerd frozen")
        self._engine.freeze()
        self._doing.pause(dice.uniform(0.3, 5))
        self._engine.thaw()
        self._doing.tell("dockerd thawed")


#: Calls whose loss or delay matters most.
_OPERATIONS = ("create", "start", "list", "inspect", "remove", "stop", "info", "archive-put", "*")


class LineFaults:
    """Deeds on the line between one hub and the engine."""

    def __init__(self, injector: Injector, name: str, doing: Doing) -> None:
        self._injector, self._name, self._doing = injector, name, doing

    def fault(self, dice: random.Random) -> None:
        """A few calls of one kind, or all for a while, meet a fault."""
        operation, kind = dice.choice(_OPERATIONS), dice.choice(KINDS)
        times = dice.choice((1, 1, 3, -1))
        lasts = dice.uniform(1, 6)
        self._doing.tell("faults on the line", f"hub {self._name}: {operation} {kind} {times}")
        with self._injector.fault(operation, kind, times=times, seconds=dice.uniform(0.2, 3)):
            self._doing.pause(lasts)

    def cut(self, dice: random.Random) -> None:
        """All connections end at once."""
        self._doing.tell("lines cut", f"hub {self._name}")
        self._injector.drop_connections()

    def down(self, dice: random.Random) -> None:
        """No connection can be made for a while."""
        self._doing.tell("lines down", f"hub {self._name}")
        with self._injector.down():
            self._doing.pause(dice.uniform(0.5, 4))


class HubOutages:
    """Deeds on one hub."""

    def __init__(self, hub: Hub, name: str, doing: Doing) -> None:
        self._hub, self._name, self._doing = hub, name, doing

    def kill(self, dice: random.Random) -> None:
        self._begin("hub killed")
        self._hub.kill()
        self._again(dice)

    def end(self, dice: random.Random) -> None:
        self._begin("hub ended")
        self._hub.stop(START_SECONDS)
        self._again(dice)

    def _begin(self, what: str) -> None:
        if not self._hub.running:
            text = f"hub {self._name} ended by itself with {self._hub.exit_code}"
            self._doing.oracle.violate("hub ended", text)
        self._doing.tell(what, self._name)

    def _again(self, dice: random.Random) -> None:
        self._doing.pause(dice.uniform(0, 2))
        self._hub.start(START_SECONDS)
        self._doing.tell("hub started", self._name)
