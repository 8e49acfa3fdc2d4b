"""A spawn that others are faster than is refused after three tries, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import until
from gpuspawner.pool import GPUPool
from gpuspawner.refusal import GPURefusal
from real_spawner import RealHub


async def test_after_three_yields_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine()
    hub = RealHub(tmp_path, client=lambda: FakeClient(machine))
    tries = []

    async def look(*_: object) -> bool:
        tries.append(1)
        return False

    monkeypatch.setattr(GPUPool, "look", look)
    try:
        with pytest.raises(GPURefusal) as refused:
            await hub.start("ada")
        assert refused.value.reason == "no-free-gpu"
        assert "took the GPU first" in str(refused.value.admin_message)
        assert len(tries) == 3
        await until(lambda: hub.idle)
        assert not machine.containers
    finally:
        hub.close()
