"""The table of states: whole, and every step in it is one that the code takes or a list shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, in_thread, until
from fakes.rows import OTHER_HUB
from gpuspawner import pool as pool_module
from gpuspawner.attempts import Attempt, Attempts
from gpuspawner.calls import Ticket
from gpuspawner.states import (
    CARD_FACTS,
    FACTS,
    STEPS,
    TRANSITIONS,
    CardState,
    State,
    Step,
    Taker,
)
from real_spawner import RealHub

Pair = tuple[State, State]


def steps(*takers: Taker) -> list[Step]:
    return [step for step in STEPS if step.taker in takers]


def pair(step: Step) -> Pair:
    return step.source, step.target


# -- the table itself -----------------------------------------------------------------------------


def test_every_state_is_described_can_be_reached_and_ends() -> None:
    assert list(FACTS) == list(State)
    reached, ending = {State.RESERVED}, {State.FREE}
    for _ in State:
        reached |= {s.target for s in STEPS if s.source in reached}
        ending |= {s.source for s in STEPS if s.target in ending}
    assert reached == ending == set(State)
    assert not [s for s in STEPS if s.source is State.FREE]


def test_no_step_is_told_twice() -> None:
    assert len({(s.source, s.target, s.taker) for s in STEPS}) == len(STEPS)


def test_a_hub_may_die_in_every_state() -> None:
    assert {s.source for s in STEPS if s.event.startswith("hub dies")} == (
        set(State) - {State.ORPHAN, State.FREE}
    )


def test_an_attempt_is_over_where_it_has_no_step() -> None:
    assert {state for state in State if not TRANSITIONS[state]} == {
        State.HELD,
        State.ORPHAN,
        State.FREE,
    }


def test_of_the_states_of_a_card_the_first_counts() -> None:
    assert list(CARD_FACTS) == list(CardState)
    assert [state.value for state in CardState] == [
        "unknown",
        "gone",
        "ill",
        "foreign",
        "held",
        "dirty",
        "settling",
        "free",
    ]
    assert CardState.first([CardState.SETTLING, CardState.HELD]) is CardState.HELD
    assert CardState.first([]) is CardState.FREE


# -- steps that attempts take ---------------------------------------------------------------------


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def hubs(machine: FakeMachine) -> AsyncIterator[Callable[..., FakeHub]]:
    made: list[FakeHub] = []

    def make(**settings: object) -> FakeHub:
        made.append(FakeHub(machine, cards=1, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for hub in made:
        for task in list(hub.pool._tasks):
            task.cancel()
        hub.close()


async def waiting(hub: FakeHub, rival: FakeHub) -> tuple[Attempt, Ticket, Awaitable[bool]]:
    """An attempt that waits for a later rival, and its look."""
    theirs, their_ticket = await rival.reserve("bea")
    mine, ticket = await hub.reserve()
    container = await hub.create(mine, ticket)
    hub.machine.advance(5)
    await rival.create(theirs, their_ticket)
    look = asyncio.ensure_future(hub.pool.look(mine, container))
    await until(lambda: mine.state is State.WAITING)
    rival.pool.give_up(theirs, their_ticket)
    return mine, ticket, look


async def test_attempts_take_every_step_that_is_theirs_and_no_other(
    hubs: Callable[..., FakeHub], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[Pair] = set()
    move = Attempts.move

    def noted(self: Attempts, attempt: Attempt, state: State) -> None:
        before = attempt.state
        move(self, attempt, state)
        taken.add((before, state))

    monkeypatch.setattr(Attempts, "move", noted)
    hub, rival = hubs(), hubs(hub_id=OTHER_HUB)

    # Given up at each point of the way.
    attempt, ticket = await hub.reserve()
    hub.pool.give_up(attempt, ticket)
    machine.fault("create", "500")
    with pytest.raises(Exception, match="500"):
        await hub.spawn()
    attempt, ticket = await hub.reserve()
    assert await hub.pool.look(attempt, await hub.create(attempt, ticket))
    hub.pool.give_up(attempt, ticket)
    assert await hub.pool.ended(attempt, 60)
    machine.fault("start", "500")
    with pytest.raises(Exception, match="500"):
        await hub.spawn()
    await until(lambda: not len(hub.pool.attempts))

    # After a wait, given up; after another, held.
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", 600.0)
    attempt, ticket, look = await waiting(hub, rival)
    assert await look
    hub.pool.give_up(attempt, ticket)
    assert await hub.pool.ended(attempt, 60)
    attempt, ticket, look = await waiting(hub, rival)
    assert await look
    hub.pool.attempts.move(attempt, State.STARTING)
    await ticket.call(lambda: hub.client.start(ticket.container_id))
    hub.pool.hold(attempt, ticket)

    assert taken == {pair(step) for step in steps("attempt")}


# -- steps of leases without an attempt -----------------------------------------------------------


@pytest.fixture
async def real(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(
        tmp_path, client=lambda: FakeClient(machine), engine={"clock": lambda: machine.steady}
    )
    yield made
    made.close()


async def forgotten(hub: RealHub) -> str:
    """A server whose hub dies before its database knows the lease; its lease."""
    lease: str = (await hub.start("ada")).lease
    hub.spawner("ada").orm_spawner.state = None
    hub.session.commit()
    hub.kill()
    hub._begin()
    assert lease not in hub.pool.known()
    assert (await hub.pool.engine.listing()).by_lease(lease) is not None
    return lease


async def test_held_releasing_free(real: RealHub, machine: FakeMachine) -> None:
    lease = (await real.start("ada")).lease
    with machine.gate("remove", "before") as gate:
        stopping = asyncio.ensure_future(real.stop("ada"))
        await in_thread(gate.wait_arrived)
        assert lease in real.pool._releases
        assert lease in real.pool.known()
    await stopping
    await until(lambda: lease not in real.pool.known())
    assert not machine.containers


async def test_held_free(real: RealHub, machine: FakeMachine) -> None:
    spawner = await real.start("ada")
    machine.rm_f(spawner.object_id)
    assert await real.poll("ada") is not None
    await until(lambda: not real.pool.known())


async def test_held_orphan_held(real: RealHub) -> None:
    lease = await forgotten(real)
    await real.restart()
    assert real.pool.known() == {lease}
    assert real.spawner("ada").lease == lease


async def test_orphan_releasing(real: RealHub, machine: FakeMachine) -> None:
    await forgotten(real)
    machine.advance(601)
    await real.pool.cleaner.clean()
    await until(lambda: not machine.containers)


async def test_orphan_free(real: RealHub, machine: FakeMachine) -> None:
    lease = await forgotten(real)
    machine.rm_f(next(iter(machine.containers)))
    assert (await real.pool.engine.listing()).by_lease(lease) is None
    assert not real.pool.known()


async def test_held_stays_held(real: RealHub) -> None:
    lease = (await real.start("ada")).lease
    await real.restart()
    assert real.pool.known() == {lease}


#: Which test shows a step; the deaths of attempts are one test for all.
SHOWN: dict[Pair, Callable[..., Awaitable[None]]] = {
    (State.HELD, State.RELEASING): test_held_releasing_free,
    (State.RELEASING, State.FREE): test_held_releasing_free,
    (State.HELD, State.FREE): test_held_free,
    (State.HELD, State.HELD): test_held_stays_held,
    (State.HELD, State.ORPHAN): test_held_orphan_held,
    (State.ORPHAN, State.HELD): test_held_orphan_held,
    (State.ORPHAN, State.RELEASING): test_orphan_releasing,
    (State.ORPHAN, State.FREE): test_orphan_free,
}
DEATHS = [step for step in steps("engine") if pair(step) not in SHOWN]


def test_every_other_step_is_shown() -> None:
    assert set(SHOWN) | {pair(s) for s in DEATHS} == {
        pair(s) for s in steps("hub", "cleaner", "engine")
    }
    assert {s.source for s in DEATHS} == {s for s in State if TRANSITIONS[s]}


@pytest.mark.parametrize("step", DEATHS, ids=lambda s: s.source.value)
async def test_a_hub_dies(
    hubs: Callable[..., FakeHub],
    machine: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
) -> None:
    """The next process does not know the lease; the list shows what is left of it."""
    hub = hubs()
    attempt, ticket = await hub.reserve()
    before = step.source
    if before is State.WAITING:
        hub.pool.give_up(attempt, ticket)
        monkeypatch.setattr(pool_module, "WAIT_SECONDS", 600.0)
        attempt, ticket, look = await waiting(hub, hubs(hub_id=OTHER_HUB))
        assert await look
    elif before is State.CREATING:
        with machine.gate("create", "after") as gate:
            creating = asyncio.ensure_future(hub.create(attempt, ticket))
            await in_thread(gate.wait_arrived)
            await _left(hubs, machine, attempt, step)
        await creating
        return
    elif before is not State.RESERVED:
        container = await hub.create(attempt, ticket)
        assert await hub.pool.look(attempt, container)
        if before is State.STARTING:
            hub.pool.attempts.move(attempt, State.STARTING)
        elif before is State.RELEASING:
            with machine.gate("remove", "before") as gate:
                hub.pool.give_up(attempt, ticket)
                await in_thread(gate.wait_arrived)
                await _left(hubs, machine, attempt, step)
            await hub.pool.ended(attempt, 60)
            return
    await _left(hubs, machine, attempt, step)


async def _left(
    hubs: Callable[..., FakeHub], machine: FakeMachine, attempt: Attempt, step: Step
) -> None:
    assert attempt.state is step.source
    heir = hubs()
    assert attempt.lease not in heir.pool.known()
    row = (await heir.engine.listing()).by_lease(attempt.lease)
    assert (row is None) == (step.target is State.FREE)
    assert row is None or row.state in FACTS[step.target].seen
