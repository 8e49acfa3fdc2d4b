"""The core alone, without a line of asyncio: each call is two steps, so that all interleave.

What decides is the product's (attempts, claims, cards, placement, verdict, leftovers); what carries
it out is played here, as :mod:`gpuspawner.pool` and :mod:`gpuspawner.launching` do it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.rows import HUB, IMAGE, OTHER_HUB, cards
from gpuspawner import names
from gpuspawner.asks import Asks
from gpuspawner.attempts import Attempt, Attempts
from gpuspawner.cards import see_cards
from gpuspawner.claims import (
    LIVE_STATES,
    Claim,
    Claims,
    Detail,
    Listing,
    Row,
    Survey,
    needs_detail,
    read_claims,
)
from gpuspawner.cleaning import Leftover, Ownership, leftovers
from gpuspawner.placement import place
from gpuspawner.request import Request, Shortage
from gpuspawner.states import State
from gpuspawner.verdict import Verdict, judge, second_look

CHOICE = st.integers(0, 11)
#: On which hubs something is started at once.
SPAWNS = st.lists(st.integers(0, 1), min_size=1, max_size=4)
#: Which of the spawns under way takes its next step, in turn.
ORDER = st.lists(st.integers(0, 5), min_size=4, max_size=40)
LOST = {"error": "GPU is lost"}
GRACE, ORPHAN_GRACE = 120.0, 600.0
#: Stops wherever something else may come in between; true if it came to its end.
Steps = Generator[None, None, bool]


class Broken(AssertionError):
    """A law was broken."""


@dataclass
class Engine:
    """What is there: rows by id, and since when."""

    now: float = 1000.0
    rows: dict[str, Row] = field(default_factory=dict)
    asks: dict[str, Asks] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    #: When each was created, and began to run, in the order of all effects.
    made: dict[str, int] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def create(self, row: Row) -> str:
        self.count += 1
        # Ids are in no order of time.
        identity = f"{self.count * 7 % 10}-{self.count}"
        self.rows[identity] = replace(row, id=identity, created=int(self.now))
        self.made[identity] = self.count
        return identity

    def set(self, identity: str, state: str) -> None:
        self.rows[identity] = replace(self.rows[identity], state=state)
        self.count += 1
        if state == "exited":
            self.finished[identity] = self.now
        elif state == "running":
            self.began[identity] = self.count

    def survey(self) -> Survey:
        details = {
            row.id: Detail(self.asks.get(row.id, Asks()), finished_at=self.finished.get(row.id))
            for row in self.rows.values()
            if needs_detail(row)
        }
        return Survey(Listing(tuple(self.rows.values()), self.now, steady=self.now), details)


@dataclass
class Hub:
    """What one hub process remembers."""

    hub_id: str
    attempts: Attempts = field(default_factory=Attempts)
    held: set[str] = field(default_factory=set)
    earlier: frozenset[str] = frozenset()
    since: float = 0.0

    @property
    def known(self) -> frozenset[str]:
        return frozenset(self.attempts.leases()) | self.held


class CoreMachine(RuleBasedStateMachine):
    """Two hubs, one or two cards. A spawn is a generator that stops where it would wait."""

    counted: ClassVar[Counter[str]] = Counter()

    @initialize(count=st.integers(1, 2))
    def begin(self, count: int) -> None:
        self.inventory = cards(count)
        self.engine = Engine()
        self.hubs = [Hub(HUB), Hub(OTHER_HUB)]
        self.spawns: list[tuple[Hub, Steps]] = []
        self.late: list[Steps] = []
        self.cancelled: set[str] = set()
        self.failing: set[str] = set()
        self.cleanings: list[tuple[Hub, Leftover]] = []
        self.leases = 0

    # -- one spawn --------------------------------------------------------------------------------

    def claims(self, hub: Hub, survey: Survey) -> Claims:
        return read_claims(survey, self.inventory, hub.hub_id)

    def spawn_steps(self, hub: Hub, request: Request) -> Steps:
        for _ in range(3):
            while True:
                ended = hub.attempts.ended
                yield
                survey = self.engine.survey()
                yield
                if ended == hub.attempts.ended:
                    break
            claims = self.claims(hub, survey).claims
            chosen = place(request, see_cards(self.inventory, claims, hub.attempts, hub.hub_id))
            if isinstance(chosen, Shortage):
                self.counted["refused"] += 1
                return False
            if any(self.inventory.by_uuid[uuid].ill for uuid in chosen.devices):
                raise Broken("a card was given out that is ill")
            self.leases += 1
            attempt = Attempt(f"L{self.leases}", chosen.devices, chosen.share, ("ada", ""))
            hub.attempts.add(attempt)
            if (yield from self.attempt_steps(hub, attempt)):
                return True
        return False

    def attempt_steps(self, hub: Hub, attempt: Attempt) -> Steps:
        """Create, look, start, look again; true if there is no need for another try."""
        hub.attempts.move(attempt, State.CREATING)
        yield
        if attempt.lease in self.failing:
            return (yield from self.end_steps(hub, attempt, ""))
        identity = self.engine.create(self.row(hub, attempt))
        yield
        going = attempt.lease not in self.cancelled
        if going:
            hub.attempts.move(attempt, State.CLAIMED)
            going = yield from self.look_steps(hub, attempt, identity)
        if going:
            hub.attempts.move(attempt, State.STARTING)
            yield
            going = attempt.lease not in self.failing and self.start(identity)
            yield
        if going:
            survey = self.engine.survey()
            yield
            mine = self.mine(hub, survey, identity)
            going = mine is not None and second_look(
                mine, self.claims(hub, survey).claims, self.inventory
            )
            going = going and attempt.lease not in self.cancelled
        if going:
            hub.attempts.move(attempt, State.HELD)
            hub.held.add(attempt.lease)
            self.counted["held"] += 1
            return True
        return (yield from self.end_steps(hub, attempt, identity))

    def end_steps(self, hub: Hub, attempt: Attempt, identity: str) -> Steps:
        """Given up; true if there is no need for another try."""
        hub.attempts.move(attempt, State.RELEASING)
        yield
        self.engine.rows.pop(identity, None)
        yield
        hub.attempts.move(attempt, State.FREE)
        self.counted["let go"] += 1
        return attempt.lease in self.cancelled | self.failing

    def look_steps(self, hub: Hub, attempt: Attempt, identity: str) -> Steps:
        for _ in range(8):
            survey = self.engine.survey()
            yield
            mine = self.mine(hub, survey, identity)
            if mine is None or attempt.lease in self.cancelled:
                return False
            verdict = judge(mine, self.claims(hub, survey).claims, self.inventory)
            self.counted[verdict.value] += 1
            if verdict is not Verdict.WAIT:
                return verdict is Verdict.START
            if attempt.state is State.CLAIMED:
                hub.attempts.move(attempt, State.WAITING)
            yield
        return False

    def mine(self, hub: Hub, survey: Survey, identity: str) -> Claim | None:
        return next((c for c in self.claims(hub, survey).claims if c.row.id == identity), None)

    def row(self, hub: Hub, attempt: Attempt) -> Row:
        own = {
            names.LABEL_HUB: hub.hub_id,
            names.LABEL_IMAGE: IMAGE,
            names.LABEL_LEASE: attempt.lease,
            names.LABEL_DEVICES: ",".join(attempt.devices),
            names.LABEL_SHARE: str(attempt.share),
        }
        return Row("", 0, IMAGE, "created", own)

    def start(self, identity: str) -> bool:
        """The effect of a start: none if it was removed meanwhile."""
        if identity not in self.engine.rows:
            return False
        self.engine.set(identity, "running")
        mine = devices_of(self.engine.rows[identity])
        for row in self.engine.rows.values():
            if not row.ours and row.state == "running" and self.engine.asks[row.id].ids & mine:
                if self.engine.began[row.id] < self.engine.made[identity]:
                    raise Broken("started although an outsider ran there before its create")
        return True

    # -- what may happen --------------------------------------------------------------------------

    @rule(hubs=SPAWNS, count=st.sampled_from([1, 1, 2]), order=ORDER)
    def spawn_whole(self, hubs: list[int], count: int, order: list[int]) -> None:
        self.spawn(hubs, Request(count))
        self.go_on(order)

    @rule(hubs=SPAWNS, order=ORDER)
    def spawn_half(self, hubs: list[int], order: list[int]) -> None:
        self.spawn(hubs, Request(1, Fraction(1, 2)))
        self.go_on(order)

    def spawn(self, hubs: list[int], request: Request) -> None:
        for which in hubs:
            if len(self.spawns) < 6:
                self.spawns.append((self.hubs[which], self.spawn_steps(self.hubs[which], request)))

    @rule(order=ORDER)
    def go_on(self, order: list[int]) -> None:
        for choice in order:
            if self.spawns:
                self.step(self.spawns[choice % len(self.spawns)])
                self.check()

    def step(self, spawn: tuple[Hub, Steps]) -> None:
        self.counted["steps"] += 1
        try:
            next(spawn[1])
        except StopIteration:
            self.spawns.remove(spawn)

    @rule(choice=CHOICE)
    def cancel(self, choice: int) -> None:
        flying = [a.lease for hub in self.hubs for a in hub.attempts]
        if flying:
            self.cancelled.add(flying[choice % len(flying)])

    @rule(choice=CHOICE)
    def fail(self, choice: int) -> None:
        """The engine refuses whatever is asked of it next for one attempt."""
        flying = [a.lease for hub in self.hubs for a in hub.attempts]
        if flying:
            self.failing.add(flying[choice % len(flying)])

    @rule(card=st.integers(0, 1), wrong=st.sampled_from([{"recovery_action": "drain"}, LOST]))
    def card_falls_ill_or_heals(self, card: int, wrong: dict[str, str]) -> None:
        devices = list(self.inventory.devices)
        if card < len(devices):
            well = cards(len(devices)).devices[card]
            devices[card] = replace(well, **({} if devices[card].ill else wrong))  # type: ignore[arg-type]
            self.inventory = replace(self.inventory, devices=tuple(devices))

    @rule(choice=CHOICE, what=st.sampled_from(["exit", "rm -f", "stop"]))
    def ends(self, choice: int, what: str) -> None:
        live = [r for r in self.engine.rows.values() if r.state == "running"]
        if live:
            row = live[choice % len(live)]
            if what == "exit":
                self.engine.set(row.id, "exited")
            else:
                del self.engine.rows[row.id]

    @rule()
    def poll(self) -> None:
        """What has ended is removed, and its lease forgotten."""
        for hub in self.hubs:
            for lease in sorted(hub.held):
                row = self.engine.survey().listing.by_lease(lease)
                if row is None or row.state not in LIVE_STATES:
                    hub.held.remove(lease)
                    if row is not None:
                        del self.engine.rows[row.id]

    @rule(card=st.integers(0, 1), running=st.booleans())
    def outsider_comes(self, card: int, running: bool) -> None:
        if len(self.engine.asks) < 3:
            identity = self.engine.create(Row("", 0, IMAGE, "created"))
            self.engine.asks[identity] = Asks("holds", frozenset({f"GPU-{card}"}))
            if running:
                self.engine.set(identity, "running")

    @rule(choice=CHOICE, starts=st.booleans())
    def outsider_starts_or_goes(self, choice: int, starts: bool) -> None:
        there = [r for r in self.engine.rows.values() if not r.ours]
        if there:
            row = there[choice % len(there)]
            if not starts:
                del self.engine.rows[row.id]
            elif row.state != "running":
                self.engine.set(row.id, "running")

    @rule(seconds=st.sampled_from([1.0, 11.0, 130.0, 700.0]))
    def pass_time(self, seconds: float) -> None:
        self.engine.now += seconds

    @rule(which=st.integers(0, 1))
    def cleaner_looks(self, which: int) -> None:
        hub = self.hubs[which]
        cleaning = leftovers(
            self.engine.survey().listing,
            Ownership(
                hub_id=hub.hub_id,
                known=hub.known,
                in_database=(),
                earlier=hub.earlier,
                watching_seconds=self.engine.now - hub.since,
            ),
            created_grace_seconds=GRACE,
            orphan_grace_seconds=ORPHAN_GRACE,
        )
        self.cleanings += [(hub, leftover) for leftover in cleaning.remove]

    @rule(choice=CHOICE)
    def cleaner_removes(self, choice: int) -> None:
        if not self.cleanings:
            return
        _, leftover = self.cleanings.pop(choice % len(self.cleanings))
        row = self.engine.rows.get(leftover.row.id)
        if row is None or (row.state in LIVE_STATES and not leftover.force):
            return
        if row.state in LIVE_STATES and any(row.lease in hub.known for hub in self.hubs):
            raise Broken("the cleaner stopped a server that somebody has")
        del self.engine.rows[row.id]

    @rule(which=st.integers(0, 1), carried_out=st.integers(0, 63))
    def kill(self, which: int, carried_out: int) -> None:
        """The hub's process is killed and started again; orders that were sent may come late."""
        old = self.hubs[which]
        mine = [one for one in self.spawns if one[0] is old]
        self.spawns = [one for one in self.spawns if one[0] is not old]
        self.late += [one[1] for i, one in enumerate(mine) if carried_out >> i & 1]
        self.cleanings = [one for one in self.cleanings if one[0] is not old]
        self.hubs[which] = Hub(
            old.hub_id,
            held=old.held,
            earlier=frozenset(self.engine.rows),
            since=self.engine.now,
        )

    @rule()
    def late_orders(self) -> None:
        for steps in self.late:
            next(steps, None)
        self.late.clear()

    # -- the laws ---------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "engine"):
            return
        check_sums(
            (row.labels[names.LABEL_SHARE], devices_of(row))
            for row in self.engine.rows.values()
            if row.ours and row.state == "running"
        )
        for hub in self.hubs:
            check_sums((a.share, a.devices) for a in hub.attempts)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.counted["runs"] += 1
        self.late_orders()
        while self.spawns:
            self.go_on([0])
        for row in [r for r in self.engine.rows.values() if not r.ours]:
            del self.engine.rows[row.id]
        for _ in range(3):
            self.poll()
            self.pass_time(700.0)
            for which in range(2):
                self.cleaner_looks(which)
            while self.cleanings:
                self.cleaner_removes(0)
        held = set.union(*(hub.held for hub in self.hubs))
        if held != {row.lease for row in self.engine.rows.values()}:
            raise Broken("something is left that nobody owns, or is believed to be there")
        if any(len(hub.attempts) for hub in self.hubs):
            raise Broken("an attempt does not end")


def devices_of(row: Row) -> frozenset[str]:
    return frozenset(row.labels[names.LABEL_DEVICES].split(","))


def check_sums(holders: Iterable[tuple[Fraction | str, Iterable[str]]]) -> None:
    load: dict[str, Fraction] = {}
    for share, devices in holders:
        for device in devices:
            load[device] = load.get(device, Fraction(0)) + Fraction(share)
    if any(size > 1 for size in load.values()):
        raise Broken(f"more than fits: {load}")
