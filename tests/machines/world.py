"""One engine, two hubs on it, people and outsiders: everything that may happen, step by step.

:class:`World` has a method for each; :mod:`machines.pool_machine` lets Hypothesis choose. After
every single effect on the engine the laws are checked on what the engine knows, not on what the
hubs believe.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any
from unittest import mock

from docker.errors import APIError

from fakes.demands import demand
from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, Outrun
from fakes.parts import FakeContainer
from fakes.rows import HUB, OTHER_HUB
from gpuspawner import names, pool_ends, removal
from gpuspawner.attempts import Attempt
from gpuspawner.devices import Inventory, Process
from gpuspawner.errors import EngineUnknown, GPUSpawnerError
from gpuspawner.simulated_inventory import simulated_inventory

from .stage import OneAtATime, Stage, SteppedLoop, Worker

#: What a spawn may end with, beside success.
REFUSALS = (GPUSpawnerError, Outrun, APIError, OSError, asyncio.CancelledError)


class Broken(AssertionError):
    """A law was broken."""


class WatchedMachine(FakeMachine):
    """An engine that remembers since when who runs, and checks the laws at each start."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.lock = self.changed = OneAtATime(stage)
        self.stage = stage
        self.turn = stage.turn
        self.step = 0
        self.made_at: dict[str, int] = {}
        #: By container: the hub process that had it made and was there for its answer.
        self.made_by: dict[str, object] = {}
        self.running_since: dict[str, int] = {}
        #: By our container: the outsiders that ran on its card when it was started.
        self.met: dict[str, set[str]] = {}
        #: Laws that were broken; in a hub's thread nobody would see them raised.
        self.broken: list[str] = []

    def make(self, *args: Any) -> FakeContainer:
        made = super().make(*args)
        self.step += 1
        self.made_at[made.id] = self.step
        self.made_by[made.id] = self.caller
        return made

    def remove(self, container_id: str, force: bool) -> None:
        one = self.containers.get(container_id)
        if one is not None and one.live and ours(one) and force and self.caller is not None:
            if self.caller.hub.pool.hub_id != one.labels[names.LABEL_HUB]:
                self.broken.append(f"{one.name} was stopped by another hub")
        super().remove(container_id, force)

    @property
    def caller(self) -> Any:
        """The hub process whose thread this is; None if it is nobody's any more."""
        worker = getattr(self.stage.here, "worker", None)
        return None if worker is None or worker.executor.dead else worker.executor.owner

    def set_running(self, one: FakeContainer) -> None:
        first = one.started_at is None
        super().set_running(one)
        self.step += 1
        self.running_since[one.id] = self.step
        if not ours(one):
            return
        self.check_sums()
        strangers = {o.id: self.running_since[o.id] for o in self.outsiders_on(one)}
        self.met[one.id] = set(strangers)
        if first and any(since < self.made_at[one.id] for since in strangers.values()):
            self.broken.append(f"{one.name} was started although an outsider ran on its card")

    def outsiders_on(self, one: FakeContainer) -> list[FakeContainer]:
        return [o for o in self.live() if not ours(o) and o.cards & one.cards]

    def check_sums(self) -> None:
        load: dict[str, Fraction] = {}
        for one in self.live():
            for card in one.cards if ours(one) else ():
                load[card] = load.get(card, Fraction(0)) + one.share
        if any(size > 1 for size in load.values()):
            holders = [f"{o.name} of {o.labels[names.LABEL_HUB][0]}" for o in self.live()]
            self.broken.append(f"a card has more than one holder: {', '.join(holders)}")


def ours(one: FakeContainer) -> bool:
    return names.LABEL_HUB in one.labels


#: What can be wrong with a card, as the driver tells it.
WRONGS: dict[str, dict[str, Any]] = {
    "ill": {"recovery_action": "drain"},
    "lost": {"error": "GPU is lost"},
    "dirty": {"processes": (Process(4711, "compute", 100),)},
    "gone": {},
}


class Cards:
    """The driver: cards that something is wrong with for a while.

    Attributes:
        wrong: what is, by index.
    """

    description = "cards that fall ill"

    def __init__(self, count: int) -> None:
        self.inventory = simulated_inventory(count)
        self.wrong: dict[int, str] = {}

    async def read(self) -> Inventory:
        devices = tuple(
            replace(d, **WRONGS[self.wrong[i]]) if i in self.wrong else d
            for i, d in enumerate(self.inventory.devices)
            if self.wrong.get(i) != "gone"
        )
        return replace(self.inventory, devices=devices)

    def unfit(self, reading: Inventory) -> set[str]:
        """The cards that a reading shows something wrong with, or does not show."""
        well = {d for d in reading.devices if d in self.inventory.devices}
        return {d.uuid for d in self.inventory.devices if d not in well}


@dataclass
class Server:
    """One person's server, as the hub's database and the hub's process know it.

    Attributes:
        stored: (lease, container id) in the database.
    """

    user: str
    spawning: asyncio.Task[tuple[Attempt, str]] | None = None
    held: tuple[Attempt, str] | None = None
    stored: tuple[str, str] | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)


class Life:
    """One process of a hub, from its start to its end.

    Attributes:
        unfit: cards that its last look at them found something wrong with.
        leases: of the attempts that were seen.
    """

    def __init__(self, world: World, hub_id: str, servers: dict[str, Server]) -> None:
        self.world, self.servers = world, servers
        self.unfit: set[str] = set()
        self.leases: set[str] = set()
        self.loop = SteppedLoop()
        self.loop.moment = world.moment
        with world.stage.threads_of(hub_id[0], self) as self.executor:
            self.hub = self.run_now(self._make(hub_id))
        for server in servers.values():
            server.spawning = server.held = None
            if server.stored is not None:
                lease, container = server.stored
                self.hub.pool.know(lease)
                known = Attempt(lease, (), Fraction(1), (server.user, ""))
                server.held = (known, container)

    async def _make(self, hub_id: str) -> FakeHub:
        def in_database() -> set[str]:
            return {s.stored[1] for s in self.servers.values() if s.stored is not None}

        hub = FakeHub(self.world.machine, hub_id, in_database=in_database)
        hub.pool.prober._source = self.world.cards
        return hub

    def run_now(self, work: Coroutine[Any, Any, FakeHub]) -> FakeHub:
        return self.loop.run_until_complete(work)

    def do(self, work: Coroutine[Any, Any, Any], server: Server | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self.loop.create_task(self._done(work))
        if server is not None:
            server.tasks.append(task)
        self.world.settle()
        return task

    async def _done(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The work's end is counted; an error that no user should see is a broken law."""
        name, told = getattr(work, "__name__", ""), "done"
        try:
            return await work
        except REFUSALS as error:
            told = type(error).__name__
        except Exception as error:  # noqa: BLE001 - whatever it is
            told = repr(error)
            self.world.machine.broken.append(f"{name} failed: {told}")
        finally:
            self.world.ends[name, told] += 1

    # -- what JupyterHub and the spawner do with the pool -----------------------------------------

    async def spawn(self, server: Server, count: int) -> tuple[Attempt, str]:
        pool = self.hub.pool
        await pool.check(demand(server.user, count=count))
        held = await self.hub.spawn(server.user, count=count)
        self.world.check_hold(held[1])
        server.held = held
        await asyncio.sleep(0.01)  # from here to the hub's commit
        server.stored = (held[0].lease, held[1])
        return held

    async def stop(self, server: Server) -> None:
        attempt, container = server.held or (None, "")
        if attempt is None:
            return
        server.held = None
        self.hub.pool.release(attempt.lease, container)
        await self.hub.pool.released(attempt.lease, 10)
        server.stored = None  # the hub commits the end once the spawner has said so

    async def poll(self, server: Server) -> None:
        if server.held is None:
            return
        held = server.held
        for pause in (1.0, 0.0):
            try:
                row = (await self.hub.engine.listing()).by_id(held[1])
            except EngineUnknown:
                return
            if row is not None and row.state not in ("exited", "removing", "dead"):
                return
            if row is None or row.state != "exited":
                break
            await asyncio.sleep(pause)
        if server.held is held:
            one = self.world.machine.containers.get(held[1])
            if one is not None and one.live:
                self.world.machine.broken.append(f"{one.name} runs and was declared dead")
            await self.stop(server)

    def end(self) -> None:
        self.executor.dead = True
        self.loop.end()


class World:
    """Everything, and what may happen to it."""

    def __init__(self, cards: int) -> None:
        self.stage = Stage()
        self.machine = WatchedMachine(self.stage)
        self.cards = Cards(cards)
        self.moment = 0.0
        self.steps = 0
        #: How often what ended how.
        self.ends: Counter[tuple[str, str]] = Counter()
        self.outsiders: list[FakeContainer] = []
        self._patches = [
            mock.patch("secrets.token_hex", _tokens()),
            mock.patch.object(pool_ends, "FOLLOW_SECONDS", 1.0),
            mock.patch.object(removal, "RETRY_SECONDS", 1.0),
        ]
        for patch in self._patches:
            patch.start()
        self.databases = [{u: Server(u) for u in ("ada", "ben", "cleo")} for _ in range(2)]
        self.ids = (HUB, OTHER_HUB)
        self.lives: list[Life | None] = [None, None]
        for which in range(2):
            self.start_hub(which)

    # -- time and order ---------------------------------------------------------------------------

    def living(self) -> list[Life]:
        return [life for life in self.lives if life is not None]

    def settle(self) -> None:
        for life in self.living():
            life.loop.settle()
        for life in self.living():
            self.check_memory(life)
        if self.machine.broken:
            raise Broken("; ".join(self.machine.broken))

    def go_on(self, choice: int, fault: Any = None) -> None:
        """Let one call go one step further, with a fault or without."""
        self.steps += 1
        self.stage.standing[choice % len(self.stage.standing)].go(fault)
        self.settle()

    def go_on_all(self, most: int = 400) -> None:
        """Let all calls end that can, in turn."""
        for _ in range(most):
            if not self.stage.standing:
                return
            self.go_on(0)

    def go_to(self, operation: str, at: str, hub: str = "a") -> Worker:
        """Let the calls of one hub go on until one stands there."""
        for _ in range(100):
            mine = [w for w in self.stage.standing if w.hub == hub]
            if (mine[0].operation, mine[0].at) == (operation, at):
                return mine[0]
            self.go_on(self.stage.standing.index(mine[0]))
        raise AssertionError(f"no {operation} of hub {hub}")

    def strike(self, worker: Worker, fault: Any) -> None:
        self.go_on(self.stage.standing.index(worker), fault)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, for the engine and both hubs."""
        end = self.moment + seconds
        while True:
            due = min((life.loop.next_timer() for life in self.living()), default=end)
            moment = max(self.moment, min(due, end))
            self.machine.advance(moment - self.moment)
            self.moment = moment
            for life in self.living():
                life.loop.moment = moment
            self.settle()
            if moment >= end:
                return

    # -- hubs -------------------------------------------------------------------------------------

    def start_hub(self, which: int) -> None:
        self.lives[which] = Life(self, self.ids[which], self.databases[which])

    def kill_hub(self, which: int, carried_out: int) -> None:
        """SIGKILL. Of the calls under way some were sent, as the bits of ``carried_out`` say."""
        life = self.lives[which]
        assert life is not None
        self.lives[which] = None
        mine = [w for w in self.stage.standing if w.hub == life.hub.pool.hub_id[0]]
        life.executor.dead = True
        for number, worker in enumerate(mine):
            if worker.at == "before" and carried_out >> number & 1:
                worker.go("late")
            if worker in self.stage.standing:
                worker.die()
        life.end()

    # -- what the laws say ------------------------------------------------------------------------

    def check_hold(self, container: str) -> None:
        """A user is told that the server runs: nobody who was there before may be on its card."""
        one = self.machine.containers.get(container)
        if one is None or not one.live or container not in self.machine.met:
            return
        still = {o.id for o in self.machine.outsiders_on(one)} & self.machine.met[container]
        before = {
            o
            for o in still
            if self.machine.running_since[o] < self.machine.running_since[container]
        }
        if before:
            self.machine.broken.append(f"{one.name} was handed over, an outsider on its card")

    def check_memory(self, life: Life) -> None:
        """What a hub has in memory fits what it has done."""
        pool, broken = life.hub.pool, self.machine.broken
        sums = Counter(uuid for attempt in pool.attempts for uuid in attempt.devices)
        if any(count > 1 for count in sums.values()):
            broken.append("one hub reserved a card twice")
        unfit = self.cards.unfit(pool.prober.inventory)
        for attempt in pool.attempts:
            # A look may end at the same moment: then either counts.
            if attempt.lease not in life.leases and unfit & life.unfit & set(attempt.devices):
                broken.append("a card was given out that the last look showed unfit")
            life.leases.add(attempt.lease)
        life.unfit = unfit
        known = pool.known()
        for one in self.machine.containers.values():
            if self.machine.made_by.get(one.id) is life:
                if one.labels[names.LABEL_LEASE] not in known:
                    broken.append(f"{one.name} was forgotten by the hub that made it")

    def finish(self) -> None:
        """Let everything come to its end: nothing may be left that nobody owns."""
        for which, life in enumerate(self.lives):
            if life is None:
                self.start_hub(which)
        self.cards.wrong.clear()
        for outsider in self.outsiders:
            if outsider.id in self.machine.containers:
                self.machine.rm_f(outsider.id)
        for number, seconds in enumerate([1.0, 15.0, 130.0, 700.0, 130.0, *[20.0] * 30]):
            self.machine.finish_late()
            self.go_on_all()
            for life in self.living():
                life.do(life.hub.pool.cleaner.clean())
                for server in life.servers.values():
                    if server.held is not None:
                        life.do(life.poll(server), server)
            self.go_on_all()
            self.pass_time(seconds)
            if number > 4 and self.at_rest():
                break
        self.check_rest()
        self.check_free_cards()

    def at_rest(self) -> bool:
        return not self.stage.standing and all(
            not len(life.hub.pool.attempts) and not life.hub.pool._releases
            for life in self.living()
        )

    def check_rest(self) -> None:
        if not self.at_rest():
            left = [list(life.hub.pool.attempts) for life in self.living()]
            raise Broken(f"does not come to rest: {left}, {self.stage.standing}")
        owned = {s.held[1] for d in self.databases for s in d.values() if s.held is not None}
        present = {c.id for c in self.machine.containers.values() if ours(c)}
        if present - owned:
            strays = [self.machine.containers[c] for c in present - owned]
            raise Broken(f"nobody owns {strays}")
        if owned - present:
            raise Broken("a server is believed to run whose container is gone")

    def check_free_cards(self) -> None:
        """Each card that nobody has can be had."""
        taken = {card for one in self.machine.live() for card in one.cards}
        life = self.living()[0]
        for number in range(len(self.cards.inventory.devices) - len(taken)):
            task = life.do(life.hub.spawn(f"last{number}"))
            for _ in range(20):
                self.go_on_all()
                self.pass_time(1.0)
            if not task.done() or task.result() is None:
                raise Broken(f"a card that nobody has can't be had: {task}")

    def close(self) -> None:
        for life in self.living():
            life.executor.dead = True
        for worker in list(self.stage.standing):
            worker.die()
        for life in self.living():
            life.loop.end()
        for patch in self._patches:
            patch.stop()


def _tokens() -> Any:
    dice = random.Random(0)
    return lambda size: dice.randbytes(size).hex()
