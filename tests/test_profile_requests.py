"""What profiles ask for, from the list to the container: parts of cards, and requests in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from jupyterhub import orm

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from gpuspawner import names, pool_seeing
from gpuspawner.refusal import GPURefusal
from real_spawner import RealHub

HALF = {"profile": "half"}
WHOLE = {"profile": "whole"}
EITHER = {"profile": "either"}


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def hub(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    made.config.GPUSpawner.max_gpus_per_user = 4
    made.config.GPUSpawner.profile_list = [
        {"display_name": "Half", "gpu": {"share": "1/2"}},
        {"display_name": "Whole", "gpu": {"count": 1}},
        {"display_name": "Either", "gpu": [{"count": 4}, {"count": 2}, {"share": 0.5}]},
    ]
    yield made
    made.close()


async def test_two_halves_are_on_each_card_and_never_beside_a_whole_one(
    hub: RealHub, machine: FakeMachine
) -> None:
    whole = set((await hub.start("first", WHOLE)).devices)
    for number in range(6):
        await hub.start(f"half{number}", HALF)
    shared = [c for c in machine.live() if c.labels[names.LABEL_SHARE] == "1/2"]
    cards = Counter(card for c in shared for card in c.cards)
    assert sorted(cards.values()) == [2, 2, 2]
    assert whole.isdisjoint(cards)
    for container in shared:
        assert f"{names.ENV_MEMORY_FRACTION}=0.5" in container.env
    for options in (HALF, WHOLE):
        with pytest.raises(GPURefusal) as refused:
            await hub.start("late", options)
        assert refused.value.reason == "no-free-gpu"
    await hub.stop("half0")
    await hub.stop("first")
    await hub.start("late", HALF)


async def test_the_first_request_that_can_be_met_counts(hub: RealHub, machine: FakeMachine) -> None:
    assert len((await hub.start("a", EITHER)).devices) == 4
    await hub.stop("a")
    await hub.start("b", WHOLE)
    assert len((await hub.start("a", EITHER)).devices) == 2
    await hub.start("c", EITHER)
    [last] = [c for c in machine.live() if c.labels[names.LABEL_USER] == "c"]
    assert last.labels[names.LABEL_SHARE] == "1/2"
    assert f"{names.ENV_MEMORY_FRACTION}=0.5" in last.env


async def test_what_a_limit_leaves_of_the_requests_is_tried(hub: RealHub) -> None:
    hub.config.GPUSpawner.max_gpus_per_user = 2
    assert len((await hub.start("a", EITHER)).devices) == 2


def join(hub: RealHub, name: str, group: str) -> None:
    found = orm.Group(name=group)
    hub.session.add(found)
    found.users.append(hub.user(name).orm_user)
    hub.session.commit()


async def free_for(hub: RealHub, name: str, slug: str) -> str:
    """What the form says to somebody about a profile."""
    state = (await hub.spawner(name).live_form())["profiles"][slug]
    return str(state["disabled"] or state["count"])


async def test_the_users_groups_and_the_profiles_hours_tell_which_cards_are_kept(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuesday = datetime(2030, 1, 1, 9, tzinfo=timezone.utc)
    monkeypatch.setattr(pool_seeing, "local_now", lambda: tuesday)
    hub = RealHub(tmp_path, client=lambda: FakeClient(machine))
    hub.config.GPUPool.bookings = [
        {"group": "class", "cards": 4, "days": ["tue"], "from": "10:00", "to": "12:00"}
    ]
    hub.config.GPUSpawner.profile_list = [
        {"display_name": "Short", "gpu": {"count": 1}, "max_hours": 0.5},
        {"display_name": "Long", "gpu": {"count": 1}, "max_hours": 2},
    ]
    await hub.restart()
    join(hub, "ada", "class")
    kept = "kept for other groups"
    assert await free_for(hub, "ada", "long") == "4 of 4 GPUs free"
    assert await free_for(hub, "ben", "short") == "4 of 4 GPUs free"
    assert kept in await free_for(hub, "ben", "long")
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ben", {"profile": "long"})
    assert kept in refused.value.jupyterhub_message
    await hub.start("ben", {"profile": "short"})

    tuesday += timedelta(hours=1)
    with pytest.raises(GPURefusal):
        await hub.start("cleo", {"profile": "short"})
    assert len((await hub.start("ada", {"profile": "long"})).devices) == 1
    hub.close()
