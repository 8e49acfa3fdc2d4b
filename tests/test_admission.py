"""What comes before a start: no pull for who is refused, and a name that an older create has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.answers import api_error
from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from gpuspawner.refusal import GPURefusal
from real_spawner import CPU, RealHub

NAME = "jupyter-ada"


class Machine(FakeMachine):
    """An engine inside of which an older create, that is not listed yet, has a name.

    Attributes:
        refusals: how many creates of that name are still refused for it.
        refused: how many were.
    """

    refusals = 0
    refused = 0

    def check_name(self, name: str) -> None:
        super().check_name(name)
        if name == NAME and self.refusals > self.refused:
            self.refused += 1
            raise api_error(409, f'Conflict. The container name "/{name}" is already in use')


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def hub(machine: Machine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


async def test_a_shortage_is_told_before_any_pull(hub: RealHub, machine: Machine) -> None:
    for number in range(4):
        await hub.start(f"user{number}")
    hub.config.GPUSpawner.image = "not-here-yet:1"
    asked = len(machine.calls)
    with pytest.raises(GPURefusal, match="in use"):
        await hub.start("late")
    assert not {"image", "pull", "create"} & set(machine.calls[asked:])
    assert hub.idle
    # Who has room is pulled for, so the assertion above can fail.
    await hub.start("cpu", CPU)
    assert {"image", "pull", "create"} <= set(machine.calls[asked:])


async def test_a_card_that_is_taken_during_the_pull_is_told_then_and_nothing_is_left(
    hub: RealHub, machine: Machine
) -> None:
    hub.config.GPUSpawner.image = "not-here-yet:1"
    with machine.gate("pull", "before") as gate:
        starting = hub.begin_start("ada")
        await in_thread(gate.wait_arrived)
        assert not len(hub.pool.attempts), "no card is held for a pull"
        for uuid in (d.uuid for d in hub.pool.prober.inventory.devices):
            machine.add(cards=(uuid,), state="running")
    with pytest.raises(GPURefusal) as refused:
        await starting
    assert refused.value.reason == "no-free-gpu"
    assert hub.idle
    assert "create" not in machine.calls


async def test_a_name_that_nothing_listed_has_is_waited_for(hub: RealHub, machine: Machine) -> None:
    machine.refusals = 2
    await hub.start("ada")
    assert machine.refused == 2
    assert [one.name for one in machine.containers.values()] == [NAME]


async def test_who_waits_for_a_name_may_cancel(hub: RealHub, machine: Machine) -> None:
    machine.refusals = 10**9
    starting = hub.begin_start("ada")
    await until(lambda: machine.refused > 1)
    await hub.stop("ada")
    assert starting.cancelled()
    await until(lambda: hub.idle)
    assert not machine.containers
    machine.refusals = 0
    await hub.start("ada")
