"""The pool on a fake engine: Hypothesis decides the order of every effect, and what fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .world import WRONGS, Life, Server, WatchedMachine, World

T = TypeVar("T")
HUBS = st.integers(0, 1)
USERS = st.sampled_from(["ada", "ben", "cleo"])
CHOICE = st.integers(0, 9)
#: Which of the standing calls go one step further, in turn, right after something was begun.
ORDER = st.lists(st.integers(0, 3), max_size=24) | st.just([0] * 60)
#: What can go wrong with a call, by where it stands.
FAULTS = {
    "before": ["lost", "500", "late", "unreachable"],
    "after": ["cut"],
    "waiting": ["timeout"],
}
#: Of those, which one strikes; None for none.
STRIKES = st.none() | st.integers(0, 3)


def if_any(what: Callable[[Any], Any]) -> Callable[[T], T]:
    return cast("Callable[[T], T]", precondition(lambda machine: bool(what(machine))))


class PoolMachine(RuleBasedStateMachine):
    """Two hubs on one engine with two cards, three people each.

    Attributes:
        counted: what happened in all runs.
    """

    counted: ClassVar[Counter[str]] = Counter()

    world: World
    engine: WatchedMachine

    # -- people -----------------------------------------------------------------------------------

    def life_of(self, hub: int) -> Life | None:
        return self.world.lives[hub]

    def server_of(self, hub: int, user: str) -> Server:
        return self.world.databases[hub][user]

    @initialize(cards=st.integers(1, 2))
    def begin(self, cards: int) -> None:
        self.world = World(cards)
        self.engine = self.world.machine

    @rule(count=st.sampled_from([1, 1, 1, 2, 0]), order=ORDER, strikes=STRIKES)
    def spawn_many(self, count: int, order: list[int], strikes: int | None) -> None:
        for hub in range(2):
            for user in ("ada", "ben"):
                self.begin_spawn(hub, user, count)
        self.go(order, strikes)

    @rule(hub=HUBS, user=USERS, count=st.sampled_from([1, 1, 2]), order=ORDER, strikes=STRIKES)
    def spawn(self, hub: int, user: str, count: int, order: list[int], strikes: int | None) -> None:
        self.begin_spawn(hub, user, count)
        self.go(order, strikes)

    def begin_spawn(self, hub: int, user: str, count: int) -> None:
        life, server = self.life_of(hub), self.server_of(hub, user)
        if life is not None and server.held is None and not busy(server):
            server.spawning = life.do(life.spawn(server, count), server)

    def go(self, order: list[int], strikes: int | None) -> None:
        """Some calls go on in this order; then a fault may strike the first."""
        standing = self.world.stage.standing
        for choice in order:
            if standing:
                self.world.go_on(choice)
        if strikes is not None and standing:
            first = standing[0]
            if strikes == 3 and (first.operation, first.at) == ("start", "before"):
                # Nobody can keep an outsider from starting on the same card just then.
                cards = self.engine.containers[str(first.subject)].cards
                self.world.outsiders.append(self.engine.add(cards=tuple(cards), state="running"))
            else:
                faults = FAULTS.get(first.at, [None])
                self.world.go_on(0, faults[strikes % len(faults)])
        self.world.pass_time(0.01)

    def servers(self, *, held: bool) -> list[tuple[Life, Server]]:
        """Those with a server, or those with one on its way."""
        return [
            (life, server)
            for life in self.world.living()
            for server in life.servers.values()
            if (server.held is not None and not busy(server) if held else busy(server))
        ]

    @if_any(lambda self: self.servers(held=False))
    @rule(choice=CHOICE)
    def cancel(self, choice: int) -> None:
        servers = self.servers(held=False)
        _, server = servers[choice % len(servers)]
        if server.spawning is not None:
            server.spawning.cancel()
            self.world.settle()

    @if_any(lambda self: self.servers(held=True))
    @rule(choice=CHOICE, order=ORDER, strikes=STRIKES)
    def stop(self, choice: int, order: list[int], strikes: int | None) -> None:
        servers = self.servers(held=True)
        life, server = servers[choice % len(servers)]
        life.do(life.stop(server), server)
        self.go(order, strikes)

    @if_any(lambda self: self.servers(held=True))
    @rule(choice=CHOICE, order=st.just([]) | ORDER, strikes=STRIKES)
    def poll(self, choice: int, order: list[int], strikes: int | None) -> None:
        servers = self.servers(held=True)
        life, server = servers[choice % len(servers)]
        life.do(life.poll(server), server)
        self.go(order, strikes)

    # -- the engine -------------------------------------------------------------------------------

    @if_any(lambda self: self.world.stage.standing)
    @rule(order=ORDER, strikes=STRIKES)
    def go_on(self, order: list[int], strikes: int | None) -> None:
        self.go(order, strikes)

    @if_any(lambda self: self.world.stage.standing)
    @rule()
    def go_on_all(self) -> None:
        self.world.go_on_all(60)

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

    @rule(choice=CHOICE, state=st.sampled_from(["created", "running"]))
    def outsider_comes(self, choice: int, state: str) -> None:
        """Sooner or later on a card that one of ours has or is about to have."""
        ours_first = sorted({card for c in self.engine.containers.values() for card in c.cards})
        cards = ours_first or [d.uuid for d in self.world.cards.inventory.devices]
        if len(self.world.outsiders) < 4:
            card = cards[choice % len(cards)]
            self.world.outsiders.append(self.engine.add(cards=(card,), state=state))
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

    @rule(card=st.integers(0, 1), wrong=st.sampled_from(sorted(WRONGS)))
    def card_falls_ill_or_heals(self, card: int, wrong: str) -> None:
        if self.world.cards.wrong.pop(card, None) is None:
            self.world.cards.wrong[card] = wrong

    @rule(seconds=st.sampled_from([-3600.0, -5.0, 5.0, 3600.0]))
    def set_clock(self, seconds: float) -> None:
        self.engine.set_clock(seconds)

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
