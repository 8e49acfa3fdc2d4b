"""Placing and reserving on one hub where nothing goes wrong, and the quota."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fakes.demands import demand
from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, idle, until
from fakes.rows import HUB, OTHER_HUB
from gpuspawner.pool import NoRoom, OverQuota

Make = Callable[..., FakeHub]


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
    await hub.pool.check(demand("ada", count=4))
    assert len(hub.pool.attempts) == 0
    with pytest.raises(NoRoom):
        await hub.pool.check(demand("ada", count=5))
    with pytest.raises(OverQuota):
        await hub.pool.check(demand("ada", count=2, limit=1))


async def test_quota_counts_servers_and_attempts_of_that_user_only(hub: FakeHub) -> None:
    await hub.spawn("ada", "one", limit=2)
    await hub.reserve("ada", "two", limit=2)
    with pytest.raises(OverQuota) as refused:
        await hub.reserve("ada", "three", limit=2)
    assert [(h.server, float(h.cards)) for h in refused.value.over.own] == [("one", 1), ("two", 1)]
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
