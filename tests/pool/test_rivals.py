"""Other hubs and outsiders on the same engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from docker.errors import APIError
from requests.exceptions import RequestException

from fakes.demands import demand
from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, Outrun, idle, in_thread, until
from fakes.rows import HUB, OTHER_HUB
from gpuspawner import pool as pool_module
from gpuspawner.attempts import Attempt
from gpuspawner.errors import EngineUnknown
from gpuspawner.pool import NoRoom
from gpuspawner.states import State

Make = Callable[..., FakeHub]


async def test_a_listing_begun_before_a_reservation_ended_is_void(
    make_hub: Make, machine: FakeMachine
) -> None:
    """Else: listed without its container, used without its reservation, and given out twice."""
    hub = make_hub(cards=1)
    await hub.pool.view(probe_age_seconds=60)
    with machine.gate("list", "after") as gate:
        late = asyncio.ensure_future(hub.reserve("bea"))
        await in_thread(gate.wait_arrived)  # it has the answer of a machine without containers
        attempt = Attempt("L", tuple(await hub.uuids()), Fraction(1), ("ada", ""))
        hub.pool.attempts.add(attempt)
        made = machine.add(
            cards=attempt.devices, state="running", labels=hub.labels(attempt), name="ada"
        )
        for state in (State.CREATING, State.CLAIMED, State.STARTING, State.HELD):
            hub.pool.attempts.move(attempt, state)
    with pytest.raises(NoRoom):
        await late
    assert made.live


async def test_a_survey_asked_for_after_a_create_shows_it(
    hub: FakeHub, machine: FakeMachine
) -> None:
    """Callers share listings, but never one that began before they asked."""
    with machine.gate("list", "after") as gate:
        early = asyncio.ensure_future(hub.engine.survey())
        await in_thread(gate.wait_arrived)
        made = machine.add(cards=("GPU-x",), state="running")
        late = [asyncio.ensure_future(hub.engine.survey()) for _ in range(5)]
        await asyncio.sleep(0)
    assert (await early).listing.by_id(made.id) is None
    assert all(s.listing.by_id(made.id) for s in await asyncio.gather(*late))
    assert machine.calls.count("list") == 2


async def test_the_later_of_two_hubs_yields_and_the_earlier_starts(
    make_hub: Make, machine: FakeMachine
) -> None:
    first, second = make_hub(HUB, cards=1), make_hub(OTHER_HUB, cards=1)
    mine, mine_ticket = await first.reserve()
    theirs, their_ticket = await second.reserve()
    a = await first.create(mine, mine_ticket)
    machine.advance(5)
    b = await second.create(theirs, their_ticket)
    looking = asyncio.ensure_future(first.pool.look(mine, a))
    await until(lambda: mine.state is State.WAITING)
    assert await second.pool.look(theirs, b) is False
    second.pool.give_up(theirs, their_ticket, force=False)
    assert await looking is True


async def test_a_rival_that_does_not_go_is_yielded_to_in_the_end(
    make_hub: Make, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", 0.05)
    first, second = make_hub(HUB, cards=1), make_hub(OTHER_HUB, cards=1)
    mine, mine_ticket = await first.reserve()
    theirs, their_ticket = await second.reserve()
    a = await first.create(mine, mine_ticket)
    machine.advance(5)
    await second.create(theirs, their_ticket)
    assert await first.pool.look(mine, a) is False


async def test_an_outsiders_card_is_not_offered_and_an_observers_is(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    (card,) = await hub.uuids()
    machine.add(cards=(card,), state="running", labels={"gpuspawner.role": "observer"})
    await hub.pool.check(demand("ada"))
    machine.add(cards=(card,), state="running")
    with pytest.raises(NoRoom) as refused:
        await hub.spawn()
    assert (refused.value.shortage.foreign, refused.value.shortage.held) == (1, 0)


async def test_ours_moves_when_an_outsider_runs_right_after_its_start(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=2)
    with machine.gate("start", "after") as gate:
        spawning = asyncio.ensure_future(hub.spawn())
        await in_thread(gate.wait_arrived)
        (ours,) = machine.live()
        machine.add(cards=tuple(ours.cards), state="running", name="stranger")
    attempt, container = await spawning
    assert container != ours.id
    assert set(attempt.devices) != set(ours.cards)
    assert ours.id not in machine.containers


async def test_an_outsider_being_started_again_is_seen_by_its_silence(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    (card,) = await hub.uuids()
    old = machine.add(cards=(card,), state="exited")
    machine.advance(3600)
    await hub.pool.check(demand("ada"))
    old.starting = True
    with pytest.raises(EngineUnknown, match=old.id[:12]):
        await hub.spawn()
    old.starting = False
    await hub.spawn()


async def test_a_committed_copy_of_ours_does_not_become_ours(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=2)
    _, container = await hub.spawn()
    machine.commit(container, "copy")
    machine.add(image="copy", state="running", name="copy")
    await hub.spawn("bea")
    await hub.pool.check(demand("ada", count=0))
    assert {c.name for c in machine.live()} >= {"copy"}


@pytest.mark.parametrize("seed", range(4))
async def test_storms_of_two_hubs_never_double_a_card(make_hub: Make, seed: int) -> None:
    machine = FakeMachine(seed=seed)
    machine.jitter = random.Random(seed)
    dice = random.Random(seed)
    hubs = [make_hub(i, on=machine, cards=2) for i in (HUB, OTHER_HUB)]
    granted = 0

    async def client(hub: FakeHub, number: int) -> None:
        nonlocal granted
        for turn in range(20):
            task = asyncio.ensure_future(hub.spawn(f"user{number}"))
            if dice.random() < 0.2:
                await asyncio.sleep(dice.random() * 0.01)
                task.cancel()
            try:
                attempt, container = await task
            except (asyncio.CancelledError, NoRoom, Outrun, RequestException, APIError):
                await asyncio.sleep(dice.random() * 0.005)
                continue
            granted += 1
            if dice.random() < 0.3:
                machine.exit(container)
            await hub.stop(attempt, container)
            if turn % 2:
                machine.fault(dice.choice(["create", "start", "remove"]), "500")
                machine.fault("create", "cut")

    await asyncio.gather(*(client(hub, n) for hub in hubs for n in range(4)))
    machine.heal()
    await until(lambda: all(idle(hub) for hub in hubs))
    assert granted
    assert not machine.violations
    assert not machine.containers


async def test_the_oracle_of_the_storms_can_fail(make_hub: Make) -> None:
    """The same storm with hubs that start without looking doubles a card."""
    machine = FakeMachine()
    hubs = [make_hub(i, on=machine, cards=1) for i in (HUB, OTHER_HUB)]
    ways = [await hub.reserve() for hub in hubs]
    for hub, (attempt, ticket) in zip(hubs, ways, strict=True):
        container = await hub.create(attempt, ticket)
        await ticket.call(lambda h=hub, c=container: h.client.start(c))  # type: ignore[misc]
    assert machine.violations
    for hub, (attempt, ticket) in zip(hubs, ways, strict=True):
        hub.pool.give_up(attempt, ticket)
        assert await hub.pool.ended(attempt, 120)
