"""The pool on a whole fake engine: the laws while things go wrong."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from fractions import Fraction
from typing import Any

import pytest
from docker.errors import APIError
from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, Outrun
from fakes.rows import HUB, OTHER_HUB
from requests.exceptions import RequestException

from gpuspawner import pool as pool_module
from gpuspawner import removal
from gpuspawner.attempts import Attempt, State
from gpuspawner.calls import Abandoned
from gpuspawner.errors import EngineUnknown
from gpuspawner.placement import Request
from gpuspawner.pool import NoRoom, OverQuota

Make = Callable[..., FakeHub]


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def make_hub(machine: FakeMachine) -> AsyncIterator[Make]:
    hubs: list[FakeHub] = []

    def make(hub_id: str = HUB, *, on: FakeMachine = machine, **settings: Any) -> FakeHub:
        hubs.append(FakeHub(on, hub_id, **settings))
        return hubs[-1]

    yield make
    for hub in hubs:
        for task in list(hub.pool._tasks):
            task.cancel()
        hub.close()


@pytest.fixture
def hub(make_hub: Make) -> FakeHub:
    return make_hub()


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between tries are no part of any law; the engine's clock is virtual anyway."""
    monkeypatch.setattr(pool_module, "FOLLOW_SECONDS", 0.001)
    monkeypatch.setattr(removal, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(removal, "LONGEST_RETRY_SECONDS", 0.005)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; a test whose condition never comes fails."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), 20)


async def in_thread(function: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, function)


def idle(hub: FakeHub) -> bool:
    """Nothing in flight, nothing being released."""
    return not len(hub.pool.attempts) and not hub.pool._releases


# -- one hub, nothing wrong ---------------------------------------------------------------------


async def test_a_hundred_at_once_on_four_cards_are_exactly_four(hub: FakeHub) -> None:
    spawns = [hub.spawn(f"user{i}") for i in range(100)]
    results = await asyncio.gather(*spawns, return_exceptions=True)
    held = [r for r in results if not isinstance(r, BaseException)]
    refused = [r for r in results if isinstance(r, NoRoom)]
    assert (len(held), len(refused)) == (4, 96)
    assert len({a.devices for a, _ in held}) == 4
    assert all(r.shortage.free == 0 for r in refused)
    assert len(hub.machine.containers) == 4
    assert hub.machine.calls.count("create") == 4, "a refusal comes before any create"
    assert idle(hub)
    assert not hub.machine.violations


async def test_reservations_alone_are_counted(hub: FakeHub) -> None:
    results = await asyncio.gather(
        *(hub.reserve(f"user{i}") for i in range(100)), return_exceptions=True
    )
    assert sum(isinstance(r, tuple) for r in results) == 4
    assert len({a.devices for a in hub.pool.attempts}) == 4


async def test_an_attempt_and_its_container_are_counted_once(hub: FakeHub) -> None:
    attempt, ticket = await hub.reserve()
    await hub.create(attempt, ticket)
    (card,) = attempt.devices
    loads = {c.uuid: c.load for c in hub.pool.cards(await hub.pool.view())}
    assert loads[card] == 1
    assert sum(loads.values()) == 1


async def test_several_cards_or_none(hub: FakeHub) -> None:
    two, _ = await hub.spawn("ada", count=2)
    assert len(set(two.devices)) == 2
    with pytest.raises(NoRoom) as refused:
        await hub.spawn("bea", count=3)
    assert refused.value.shortage.free_suitable == 2
    await hub.spawn("bea", count=2)
    cpu, container = await hub.spawn("cem", count=0)
    assert cpu.devices == ()
    assert hub.machine.containers[container].live


async def test_a_freed_card_is_given_out_again(hub: FakeHub) -> None:
    held = [await hub.spawn(f"user{i}") for i in range(4)]
    await hub.stop(*held[2])
    again, _ = await hub.spawn("next")
    assert again.devices == held[2][0].devices


async def test_check_reserves_nothing(hub: FakeHub) -> None:
    await hub.pool.check(Request(4), "ada", 0)
    assert len(hub.pool.attempts) == 0
    with pytest.raises(NoRoom):
        await hub.pool.check(Request(5), "ada", 0)
    with pytest.raises(OverQuota):
        await hub.pool.check(Request(2), "ada", 1)


# -- quota --------------------------------------------------------------------------------------


async def test_quota_counts_servers_and_attempts_of_that_user_only(hub: FakeHub) -> None:
    await hub.spawn("ada", "one", limit=2)
    await hub.reserve("ada", "two", limit=2)
    with pytest.raises(OverQuota) as refused:
        await hub.reserve("ada", "three", limit=2)
    assert refused.value.holding.servers == (("one", 1), ("two", 1))
    await hub.spawn("bea", limit=1)
    await hub.spawn("ada", "cpu", count=0, limit=2)


async def test_a_storm_of_one_user_stays_within_the_quota(hub: FakeHub) -> None:
    results = await asyncio.gather(
        *(hub.spawn("ada", f"s{i}", limit=2) for i in range(20)), return_exceptions=True
    )
    assert sum(isinstance(r, OverQuota) for r in results) == 18
    assert len(hub.machine.live()) == 2


async def test_what_a_user_gave_up_does_not_count_against_them(
    hub: FakeHub, machine: FakeMachine
) -> None:
    machine.fault("remove", "500", times=-1)
    attempt, container = await hub.spawn("ada", limit=1)
    hub.pool.release(attempt.lease, container)
    second, ticket = await hub.reserve("ada", limit=1)
    assert second.devices != attempt.devices, "its card is not free yet"
    await hub.create(second, ticket)
    hub.pool.give_up(second, ticket)
    third, _ = await hub.reserve("ada", limit=1)
    assert third.devices not in (attempt.devices, second.devices)
    machine.heal()
    await until(lambda: len(hub.pool.attempts) == 1 and not hub.pool._releases)


async def test_another_hubs_user_of_the_same_name_is_another_person(make_hub: Make) -> None:
    await make_hub(HUB).spawn("ada", limit=1)
    await make_hub(OTHER_HUB).spawn("ada", limit=1)


# -- giving up ----------------------------------------------------------------------------------


async def test_give_up_in_each_state_leaves_nothing(hub: FakeHub, machine: FakeMachine) -> None:
    for stop_after in range(5):
        attempt, ticket = await hub.reserve(f"user{stop_after}")
        if stop_after >= 1:
            container = await hub.create(attempt, ticket)
        if stop_after >= 2:
            assert await hub.pool.look(attempt, container)
        if stop_after >= 3:
            hub.pool.attempts.move(attempt, State.STARTING)
        if stop_after >= 4:
            await ticket.call(lambda: hub.client.start(container))
        hub.pool.give_up(attempt, ticket)
        hub.pool.give_up(attempt, ticket)
        assert await hub.pool.ended(attempt, 10)
        assert attempt.state is State.ENDED
        assert not machine.containers
    assert idle(hub)


async def test_give_up_while_waiting_for_a_rival(make_hub: Make, machine: FakeMachine) -> None:
    ours, rival = make_hub(HUB, cards=1), make_hub(OTHER_HUB, cards=1)
    attempt, ticket = await ours.reserve()
    later, later_ticket = await rival.reserve()
    container = await ours.create(attempt, ticket)
    machine.advance(5)
    await rival.create(later, later_ticket)
    looking = asyncio.ensure_future(ours.pool.look(attempt, container))
    await until(lambda: attempt.state is State.WAITING)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    ours.pool.give_up(attempt, ticket)
    assert await ours.pool.ended(attempt, 10)
    assert [c.labels["gpuspawner.hub"] for c in machine.containers.values()] == [OTHER_HUB]


async def test_a_held_server_is_not_given_up(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.go(attempt, ticket)
    hub.pool.hold(attempt, ticket)
    hub.pool.give_up(attempt, ticket)
    assert attempt.state is State.HELD
    assert [c.id for c in machine.live()] == [container]


async def test_the_reservation_stays_until_the_removal_is_answered(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    with machine.gate("remove", "before") as gate:
        hub.pool.give_up(attempt, ticket)
        await in_thread(gate.wait_arrived)
        assert attempt.lease in hub.pool.attempts
        assert not await hub.pool.ended(attempt, 0.01)
        assert container in machine.containers
    assert await hub.pool.ended(attempt, 10)
    assert not machine.containers


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_create_that_is_cancelled_still_creates_and_is_removed(
    hub: FakeHub, machine: FakeMachine, at: Any
) -> None:
    attempt, ticket = await hub.reserve()
    with machine.gate("create", at) as gate:
        creating = asyncio.ensure_future(hub.create(attempt, ticket))
        await in_thread(gate.wait_arrived)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        hub.pool.give_up(attempt, ticket)
        assert attempt.state is State.RELEASING
    assert await hub.pool.ended(attempt, 10)
    assert not machine.containers


async def test_a_start_inside_the_engine_is_followed_to_its_end(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    with machine.gate("start", "inside") as gate:
        going = asyncio.ensure_future(hub.go(attempt, ticket))
        await in_thread(gate.wait_arrived)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        hub.pool.give_up(attempt, ticket)
        assert not await hub.pool.ended(attempt, 0.01)
    assert await hub.pool.ended(attempt, 10)
    assert not machine.containers


async def test_no_call_is_sent_for_an_attempt_given_up(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    hub.pool.give_up(attempt, ticket)
    with pytest.raises(Abandoned):
        await ticket.create(hub.kwargs(attempt))
    assert "create" not in machine.calls


async def test_calls_outlive_the_event_loop(machine: FakeMachine) -> None:
    """A hub told to end while a create is inside the engine: the thread cleans up behind it."""

    def one_life() -> FakeHub:
        async def life() -> FakeHub:
            hub = FakeHub(machine)
            attempt, ticket = await hub.reserve()
            creating = asyncio.ensure_future(hub.create(attempt, ticket))
            await in_thread(gate.wait_arrived)
            creating.cancel()
            hub.pool.give_up(attempt, ticket)
            return hub

        return asyncio.run(life())

    with machine.gate("create", "before") as gate:
        hub = await asyncio.get_running_loop().run_in_executor(None, one_life)
    await in_thread(hub.close)
    assert "create" in machine.calls
    assert not machine.containers


@pytest.mark.parametrize("seed", range(3))
async def test_random_cancels_leave_nothing(make_hub: Make, seed: int) -> None:
    machine = FakeMachine(seed=seed)
    machine.jitter = random.Random(seed)
    dice = random.Random(seed)
    hub = make_hub(on=machine)

    async def one(number: int) -> tuple[Attempt, str] | None:
        task = asyncio.ensure_future(hub.spawn(f"user{number}"))
        await asyncio.sleep(dice.random() * 0.02)
        task.cancel()
        try:
            return await task
        except (asyncio.CancelledError, NoRoom):
            return None

    held = [r for r in await asyncio.gather(*(one(i) for i in range(50))) if r]
    await until(lambda: not len(hub.pool.attempts))
    assert {c for _, c in held} == set(machine.containers)
    for attempt, container in held:
        await hub.stop(attempt, container)
    assert not machine.containers
    assert not machine.violations
    assert len([await hub.spawn(f"again{i}") for i in range(4)]) == 4


# -- an engine that fails -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["unreachable", "lost", "500"])
async def test_an_engine_that_cannot_be_asked_gives_nothing_out(
    hub: FakeHub, machine: FakeMachine, fault: Any
) -> None:
    machine.fault("list", fault)
    with pytest.raises(EngineUnknown):
        await hub.spawn()
    assert not machine.containers
    assert "create" not in machine.calls
    await hub.spawn()


async def test_a_refused_create_frees_the_card_at_once(hub: FakeHub, machine: FakeMachine) -> None:
    machine.fault("create", "500")
    with pytest.raises(APIError):
        await hub.spawn()
    await until(lambda: idle(hub))
    assert machine.calls.count("remove") == 0


async def test_an_unanswered_create_keeps_its_card_until_its_container_was_removed(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    machine.fault("create", "late")
    with pytest.raises(RequestException):
        await hub.spawn()
    machine.advance(60)
    with pytest.raises(NoRoom):
        await hub.spawn("bea")
    machine.finish_late()
    await until(lambda: idle(hub))
    assert not machine.containers
    await hub.spawn("bea")


async def test_an_unanswered_create_that_never_comes_ends_after_the_grace(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    machine.fault("create", "lost")
    with pytest.raises(RequestException):
        await hub.spawn()
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    machine.advance(119)
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    assert len(hub.pool.attempts) == 1
    machine.advance(3)
    await until(lambda: idle(hub))


async def test_silence_of_the_engine_is_no_part_of_the_grace(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    machine.fault("create", "late")
    with pytest.raises(RequestException):
        await hub.spawn()
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    machine.fault("list", "unreachable", times=-1)
    machine.advance(1000)
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    assert len(hub.pool.attempts) == 1
    machine.heal()
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    assert len(hub.pool.attempts) == 1
    machine.finish_late()
    await until(lambda: idle(hub))
    assert not machine.containers


async def test_a_container_still_being_created_answers_404_and_is_followed_on(
    make_hub: Make, machine: FakeMachine
) -> None:
    """20.10 with a big new volume: listed at once, but inspect and removal say 404."""
    hub = make_hub(cards=1)
    machine.fault("create", "cut")
    with machine.gate("remove", "before") as gate:
        with pytest.raises(RequestException):
            await hub.spawn()
        (made,) = machine.containers.values()
        made.answers = False
        await in_thread(gate.wait_arrived)
    removed = machine.calls.count("remove")
    await until(lambda: machine.calls.count("remove") > removed + 2)
    assert len(hub.pool.attempts) == 1, "a 404 while listed is no end"
    made.answers = True
    await until(lambda: idle(hub))
    assert not machine.containers


async def test_a_create_whose_answer_was_lost_is_found_by_its_lease(
    hub: FakeHub, machine: FakeMachine
) -> None:
    machine.fault("create", "cut")
    with pytest.raises(RequestException):
        await hub.spawn()
    await until(lambda: idle(hub))
    assert not machine.containers


@pytest.mark.parametrize("fault", ["unreachable", "lost", "cut", "500"])
async def test_a_failed_start_leaves_nothing(
    hub: FakeHub, machine: FakeMachine, fault: Any
) -> None:
    machine.fault("start", fault)
    with pytest.raises((RequestException, APIError)):
        await hub.spawn()
    await until(lambda: idle(hub))
    assert not machine.containers


async def test_removal_is_tried_until_it_is_answered(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, container = await hub.spawn()
    for kind in ("500", "unreachable", "lost", "500"):
        machine.fault("remove", kind)  # type: ignore[arg-type]
    hub.pool.release(attempt.lease, container)
    hub.pool.release(attempt.lease, container)
    assert attempt.lease in hub.pool.known()
    assert await hub.pool.released(attempt.lease, 10)
    assert not machine.containers
    assert attempt.lease not in hub.pool.known()
    assert machine.calls.count("remove") == 5


async def test_a_yielding_container_that_somebody_started_is_still_removed(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.run(container)
    hub.pool.give_up(attempt, ticket, force=False)
    assert await hub.pool.ended(attempt, 10)
    assert not machine.containers


async def test_a_process_that_cannot_be_killed_keeps_its_card(
    make_hub: Make, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(removal, "STUCK_SECONDS", 0.0)
    hub = make_hub(cards=1)
    attempt, container = await hub.spawn()
    machine.containers[container].unkillable = True
    hub.pool.release(attempt.lease, container)
    assert not await hub.pool.released(attempt.lease, 0.05)
    with pytest.raises(NoRoom):
        await hub.spawn("bea")
    told = [r for r in caplog.records if "can't be removed" in r.message]
    assert [r.levelno for r in told] == [logging.ERROR], "told, and told once"
    machine.containers[container].unkillable = False
    assert await hub.pool.released(attempt.lease, 10)
    await hub.spawn("bea")


async def test_a_removal_under_way_by_somebody_else_counts_as_gone(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, container = await hub.spawn()
    machine.containers[container].state = "removing"
    await hub.stop(attempt, container)


async def test_a_failed_listing_is_no_verdict(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.fault("list", "500", times=3)
    assert await hub.pool.look(attempt, container)


async def test_without_any_listing_nothing_starts(
    hub: FakeHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", 0.0)
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.fault("list", "500", times=-1)
    with pytest.raises(EngineUnknown):
        await hub.pool.look(attempt, container)


async def test_removed_by_hand_before_it_started(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.rm_f(container)
    with pytest.raises(EngineUnknown, match="removed by somebody else"):
        await hub.pool.look(attempt, container)
    hub.pool.give_up(attempt, ticket)
    assert await hub.pool.ended(attempt, 10)


async def test_slow_creates_hold_up_no_refusal(make_hub: Make, machine: FakeMachine) -> None:
    hub = make_hub(cards=2, threads=2)
    with machine.gate("create", "before") as gate:
        slow = [asyncio.ensure_future(hub.spawn(f"user{i}")) for i in range(2)]
        for _ in slow:
            await in_thread(gate.wait_arrived)
        with pytest.raises(NoRoom):
            await asyncio.wait_for(hub.spawn("late"), 10)
    assert len(await asyncio.gather(*slow)) == 2


# -- what was listed when -----------------------------------------------------------------------


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


# -- rivals and strangers -----------------------------------------------------------------------


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
    await hub.pool.check(Request(1), "ada", 0)
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
    await hub.pool.check(Request(1), "ada", 0)
    old.starting = True
    with pytest.raises(EngineUnknown, match=old.id[:12]):
        await hub.spawn()
    old.starting = False
    await hub.spawn()


async def test_a_committed_copy_of_ours_does_not_become_ours(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=2)
    attempt, container = await hub.spawn()
    machine.commit(container, "copy")
    machine.add(image="copy", state="running", name="copy")
    await hub.spawn("bea")
    await hub.pool.check(Request(0), "ada", 0)
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
    assert granted > 10
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
        assert await hub.pool.ended(attempt, 10)


# -- after a crash ------------------------------------------------------------------------------


def left_by(owner: FakeHub, lease: str, state: str, **labels: str) -> str:
    attempt = Attempt(lease, (), Fraction(1), (labels.pop("user", "ada"), ""))
    return owner.machine.add(state=state, labels=owner.labels(attempt, **labels)).id


async def test_the_cleaner_after_a_crash(make_hub: Make, machine: FakeMachine) -> None:
    database: set[str] = set()
    hub = make_hub(in_database=lambda: database)
    created, running, named, ended = (
        left_by(hub, f"L{i}", state)
        for i, state in enumerate(["created", "running", "running", "exited"])
    )
    known = left_by(hub, "L9", "running")
    stranger = machine.add(state="created").id
    sibling = left_by(hub, "L8", "created", hub=OTHER_HUB)
    running_sibling = left_by(hub, "L7", "running", hub=OTHER_HUB)
    database.add(named)
    hub.pool.know("L9")
    machine.advance(30)

    await hub.pool.clean()
    left = {created, running, named, ended, known, stranger, sibling, running_sibling}
    assert set(machine.containers) == left - {created}
    machine.advance(590)
    await hub.pool.clean()
    assert set(machine.containers) == left - {created, sibling}
    machine.advance(15)
    await hub.pool.clean()
    assert set(machine.containers) == {named, known, stranger, running_sibling}


async def test_the_cleaner_never_stops_another_hubs_container_that_started_meanwhile(
    hub: FakeHub, machine: FakeMachine
) -> None:
    slow = left_by(hub, "L", "created", hub=OTHER_HUB)
    machine.advance(121)
    with machine.gate("list", "after") as gate:
        cleaning = asyncio.ensure_future(hub.pool.clean())
        await in_thread(gate.wait_arrived)
        machine.run(slow)
    await cleaning
    assert machine.containers[slow].live
    assert "remove" in machine.calls


async def test_the_cleaner_leaves_attempts_alone_however_slow(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.advance(100_000)
    await hub.pool.clean()
    assert container in machine.containers


async def test_a_twin_with_our_id_is_told_of_once_and_not_touched(
    hub: FakeHub, machine: FakeMachine, caplog: Any
) -> None:
    await hub.pool.clean()
    machine.advance(5)
    twin = left_by(hub, "T", "running")
    machine.advance(10_000)
    await hub.pool.clean()
    await hub.pool.clean()
    await hub.pool.check(Request(0), "ada", 0)
    assert twin in machine.containers
    alarms = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert len(alarms) == 1


async def test_a_new_spawn_removes_what_its_server_left_behind(
    hub: FakeHub, machine: FakeMachine
) -> None:
    old = left_by(hub, "old", "running")
    others = {
        left_by(hub, "bea", "running", user="bea"),
        left_by(hub, "named", "running", server="named"),
        left_by(hub, "theirs", "running", hub=OTHER_HUB),
        machine.add(state="running").id,
    }
    machine.advance(30)
    await hub.pool.check(Request(0), "ada", 0)
    assert set(machine.containers) == others
    assert old not in machine.containers


async def test_the_cleaner_goes_on_after_faults(
    make_hub: Make, machine: FakeMachine, caplog: Any
) -> None:
    answers = iter([RuntimeError("database is locked"), frozenset()])

    def in_database() -> frozenset[str]:
        answer = next(answers, frozenset())
        if isinstance(answer, Exception):
            raise answer
        return answer

    hub = make_hub(in_database=in_database, clean_interval_seconds=0.1)
    stuck = left_by(hub, "L", "created")
    machine.advance(30)
    machine.fault("list", "500")
    machine.fault("remove", "500")
    hub.pool.start_cleaner()
    hub.pool.start_cleaner()
    await until(lambda: stuck not in machine.containers)
    assert any("failed" in r.message for r in caplog.records)
