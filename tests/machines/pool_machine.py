"""The pool on a fake engine: Hypothesis decides the order of every effect, and what fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .world import CARDS, Life, Server, World

T = TypeVar("T")
HUBS = st.integers(0, 1)
USERS = st.sampled_from(["ada", "ben", "cleo"])
CHOICE = st.integers(0, 9)
#: How many calls go one step further right after something was begun: none, some, all.
THEN = st.sampled_from([0, 3, 9, 14, 60, 60])
#: What can go wrong with a call, by where it stands.
FAULTS = {
    "before": ["lost", "500", "late", "unreachable"],
    "after": ["cut"],
    "waiting": ["timeout"],
}


def if_any(what: Callable[[Any], Any]) -> Callable[[T], T]:
    return cast("Callable[[T], T]", precondition(lambda machine: bool(what(machine))))


class PoolMachine(RuleBasedStateMachine):
    """Two hubs on one engine with two cards, three people each.

    Attributes:
        counted: what happened in all runs.
    """

    counted: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.engine = self.world.machine

    # -- people -----------------------------------------------------------------------------------

    def life_of(self, hub: int) -> Life | None:
        return self.world.lives[hub]

    def server_of(self, hub: int, user: str) -> Server:
        return self.world.databases[hub][user]

    @rule(hub=HUBS, user=USERS, count=st.sampled_from([1, 1, 1, 2, 0]), steps=THEN)
    def spawn(self, hub: int, user: str, count: int, steps: int) -> None:
        life, server = self.life_of(hub), self.server_of(hub, user)
        if life is not None and server.held is None and not busy(server):
            server.spawning = life.do(life.spawn(server, count), server)
            self.world.go_on_all(steps)
            self.world.pass_time(0.01 if steps else 0.0)

    @rule(hub=HUBS, user=USERS)
    def cancel(self, hub: int, user: str) -> None:
        spawning = self.server_of(hub, user).spawning
        if spawning is not None:
            spawning.cancel()
            self.world.settle()

    @rule(hub=HUBS, user=USERS, what=st.sampled_from(["stop", "poll"]), steps=THEN)
    def stop_or_poll(self, hub: int, user: str, what: str, steps: int) -> None:
        life, server = self.life_of(hub), self.server_of(hub, user)
        if life is not None and server.held is not None and not busy(server):
            life.do(life.stop(server) if what == "stop" else life.poll(server), server)
            self.world.go_on_all(steps)

    # -- the engine -------------------------------------------------------------------------------

    @if_any(lambda self: self.world.stage.standing)
    @rule(choice=CHOICE, steps=st.integers(1, 8))
    def go_on(self, choice: int, steps: int) -> None:
        for _ in range(steps):
            if self.world.stage.standing:
                self.world.go_on(choice)

    @if_any(lambda self: self.world.stage.standing)
    @rule()
    def go_on_all(self) -> None:
        self.world.go_on_all(60)

    @if_any(lambda self: [w for w in self.world.stage.standing if w.at in FAULTS])
    @rule(choice=CHOICE, data=st.data())
    def fail(self, choice: int, data: st.DataObject) -> None:
        can = [w for w in self.world.stage.standing if w.at in FAULTS]
        chosen = can[choice % len(can)]
        fault = data.draw(st.sampled_from(FAULTS[chosen.at]))
        self.world.go_on(self.world.stage.standing.index(chosen), fault)

    @rule()
    def finish_late(self) -> None:
        self.engine.finish_late()
        self.world.settle()

    @rule(seconds=st.sampled_from([0.02, 0.3, 1.0, 4.0, 20.0, 130.0, 700.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(live_restore=st.booleans())
    def restart_engine(self, live_restore: bool) -> None:
        for worker in list(self.world.stage.standing):
            if worker.at == "before":
                worker.go("unreachable")
            elif worker.at == "after":
                worker.go("cut")
        self.engine.restart_engine(live_restore=live_restore)
        self.world.settle()

    # -- outside hands ----------------------------------------------------------------------------

    @if_any(lambda self: self.engine.containers)
    @rule(choice=CHOICE, what=st.sampled_from(["exit", "rm -f", "restart", "pause", "oom"]))
    def outside_hand(self, choice: int, what: str) -> None:
        there = [c for c in self.engine.containers.values() if not c.starting]
        if not there:
            return
        one = there[choice % len(there)]
        if what == "rm -f":
            self.engine.rm_f(one.id)
        elif one.live:
            if what == "pause":
                self.engine.pause(one.id, paused=one.state != "paused")
            elif what == "restart":
                self.engine.restart(one.id)
            else:
                self.engine.exit(one.id, oom_killed=what == "oom")
        self.world.settle()

    @rule(card=st.integers(0, CARDS - 1), state=st.sampled_from(["created", "running"]))
    def outsider_comes(self, card: int, state: str) -> None:
        if len(self.engine.containers) < 12:
            uuid = self.world.cards.inventory.devices[card].uuid
            self.world.outsiders.append(self.engine.add(cards=(uuid,), state=state))
            self.world.settle()

    @if_any(lambda self: self.world.outsiders)
    @rule(choice=CHOICE, starts=st.booleans())
    def outsider_starts_or_goes(self, choice: int, starts: bool) -> None:
        one = self.world.outsiders[choice % len(self.world.outsiders)]
        if one.id in self.engine.containers:
            if not starts:
                self.engine.rm_f(one.id)
            elif not one.live:
                self.engine.run(one.id)
        self.world.settle()

    @rule(card=st.integers(0, CARDS - 1))
    def card_falls_ill_or_heals(self, card: int) -> None:
        self.world.cards.ill ^= {card}

    # -- hubs -------------------------------------------------------------------------------------

    @rule(hub=HUBS)
    def clean(self, hub: int) -> None:
        life = self.life_of(hub)
        if life is not None:
            life.do(life.hub.pool.cleaner.clean())

    @rule(hub=HUBS, carried_out=st.integers(0, 7))
    def kill_or_start(self, hub: int, carried_out: int) -> None:
        if self.life_of(hub) is None:
            self.world.start_hub(hub)
        else:
            self.world.kill_hub(hub, carried_out)

    @invariant()
    def nothing_is_broken(self) -> None:
        self.world.settle()

    def teardown(self) -> None:
        try:
            self.world.finish()
        finally:
            self.world.close()
            self.counted["runs"] += 1
            self.counted["calls stepped"] += self.world.steps
            for (name, told), count in self.world.ends.items():
                self.counted[f"{name}: {told}"] += count


def busy(server: Server) -> bool:
    return any(not task.done() for task in server.tasks)
