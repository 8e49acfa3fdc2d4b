"""Slices, linked cards and cards kept for groups, all the way through the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from fakes.demands import demand
from fakes.hub import FakeHub
from gpuspawner import pool_seeing
from gpuspawner.errors import ConfigError
from gpuspawner.pool import NoRoom
from gpuspawner.simulated_inventory import simulated_inventory

Make = Callable[..., FakeHub]
MIG = ["3g.20gb", "1g.5gb", "1g.5gb"]
RESEARCH = frozenset({"research"})


async def test_every_slice_is_given_once_and_its_card_never(make_hub: Make) -> None:
    hub = make_hub(inventory={"simulated": 2, "mig": MIG})
    slices = simulated_inventory(2, mig=MIG).slice_by_uuid
    spawns = [hub.spawn(f"user{n}", mig_profile="1g.5gb") for n in range(8)]
    results = await asyncio.gather(*spawns, return_exceptions=True)
    held = [r for r in results if not isinstance(r, BaseException)]
    refused = [r for r in results if isinstance(r, NoRoom)]
    assert (len(held), len(refused)) == (4, 4)
    given = [attempt.devices for attempt, _ in held]
    assert {d for (d,) in given} == {u for u, s in slices.items() if s.profile == "1g.5gb"}
    assert {attempt.memory_mib for attempt, _ in held} == {5 * 1024}
    assert refused[0].shortage.total == 6
    with pytest.raises(NoRoom) as whole:
        await hub.spawn("whole")
    assert whole.value.shortage.total == 0
    await hub.stop(*held[0])
    again, _ = await hub.spawn("next", mig_profile="1G.5GB")
    assert again.devices == held[0][0].devices
    assert not hub.machine.violations


async def test_pairs_are_linked_however_many_come_at_once(make_hub: Make) -> None:
    hub = make_hub(inventory={"simulated": 8, "nvlink_groups": [4, 4]})
    uuids = await hub.uuids()
    spawns = [hub.spawn(f"user{n}", count=2, linked="require") for n in range(5)]
    results = await asyncio.gather(*spawns, return_exceptions=True)
    pairs = [r[0].devices for r in results if not isinstance(r, BaseException)]
    assert len(pairs) == 4
    assert all(len({uuids.index(u) // 4 for u in pair}) == 1 for pair in pairs)


async def test_reserved_cards_are_their_groups(
    make_hub: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub(reserved_for={"research": 1, "other": ["*H200*"]})
    top = (await hub.uuids())[-1]
    attempt = await hub.pool.reserve(replace(demand("ada"), groups=RESEARCH))
    assert attempt.devices == (top,)
    with pytest.raises(NoRoom) as refused:
        await hub.pool.check(demand("ben", count=4))
    shortage = refused.value.shortage
    assert (shortage.suitable, shortage.closed, shortage.never) == (3, 1, True)
    assert any(c.kept for c in refused.value.cards)
    await hub.pool.check(demand("ben"))
    told = "keeps '*H200*', but no GPU has that UUID or model"
    assert caplog.text.count(told) == 1, "told once"


async def test_a_booking_is_looked_up_at_the_moment_of_the_decision(
    make_hub: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2030, 1, 1, 9, 0, tzinfo=ZoneInfo("Europe/Berlin"))
    monkeypatch.setattr(pool_seeing, "local_now", lambda: now)
    booking = {"group": "ml", "cards": ["*A100*"], "days": ["tue"], "from": "10:00", "to": "11:00"}
    hub = make_hub(bookings=[booking])
    short = replace(demand("ada"), max_seconds=45 * 60)
    await hub.pool.check(short)
    with pytest.raises(NoRoom) as refused:
        await hub.pool.check(replace(short, max_seconds=3600))
    assert refused.value.shortage.kept_from == now + timedelta(hours=1)
    now += timedelta(hours=1)
    with pytest.raises(NoRoom) as refused:
        await hub.pool.check(short)
    assert refused.value.shortage.kept_until == now + timedelta(hours=1)
    await hub.pool.check(replace(demand("ada"), groups=frozenset({"ml"})))


def test_settings_are_checked_when_the_pool_is_made(make_hub: Make) -> None:
    with pytest.raises(ConfigError, match=r"GPUPool.reserved_for.*0 is no number of cards"):
        make_hub(reserved_for={"research": 0})
