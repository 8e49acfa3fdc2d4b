"""Unknown is busy, on the form too: nothing is offered that could not be asked about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from gpuspawner import messages
from gpuspawner.errors import EngineUnknown, ProbeError
from gpuspawner.refusal import GPURefusal
from real_spawner import RealHub


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RealHub]:
    machine = FakeMachine()
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


def failing(error: Exception) -> Any:
    async def fail(*_args: Any, **_kwargs: Any) -> None:
        raise error

    return fail


async def told(hub: RealHub) -> dict[str, str]:
    """Why each profile is closed, as an open form reads it; the page says the same."""
    spawner = hub.spawner("ada")
    page = await spawner.get_options_form()
    found = {
        slug: state["disabled"] for slug, state in (await spawner.live_form())["profiles"].items()
    }
    for why in found.values():
        assert why in page.replace("&#39;", "'")
    return found


async def test_without_the_driver_only_a_server_without_a_gpu_is_offered(
    hub: RealHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.pool.prober, "latest", failing(ProbeError("hangs", kind="timeout")))
    assert await told(hub) == {"one-gpu": messages.cards_unknown(cpu_available=True), "cpu": ""}
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ada", {"profile": "one-gpu"})
    assert refused.value.reason == "gpu-engine"
    assert not (await hub.start("ada", {"profile": "cpu"})).devices


async def test_without_the_engine_nothing_is_offered(
    hub: RealHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.pool, "survey", failing(EngineUnknown("away")))
    assert await told(hub) == dict.fromkeys(("one-gpu", "cpu"), messages.engine_down())
