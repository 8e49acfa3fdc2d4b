"""Hubs on a fake engine, for the tests of the pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub
from fakes.rows import HUB
from gpuspawner import pool_ends, removal

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
    monkeypatch.setattr(pool_ends, "FOLLOW_SECONDS", 0.001)
    monkeypatch.setattr(removal, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(removal, "LONGEST_RETRY_SECONDS", 0.005)
