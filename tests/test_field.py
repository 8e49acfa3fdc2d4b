"""What people ran into elsewhere, each thread by what a correct product does.

Small forms of their own: what each part does in full is in that part's tests. Left out are the
threads for which the part is not built: queues, MIG, swarms, and a check of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from fakes.parts import FakeContainer
from fakes.rows import HUB, cards, listing
from gpuspawner import inside_watch, standing
from gpuspawner.attempts import Attempts
from gpuspawner.cards import see_cards
from gpuspawner.claims import Claims, Survey
from gpuspawner.devices import Device, Inventory
from gpuspawner.health import Health, Limits, Look, Seen, observe, recalled
from gpuspawner.placement import place
from gpuspawner.refusal import GPURefusal
from gpuspawner.request import Placement, Request
from ground.cards import simulated_uuids
from real_spawner import CPU, RealHub

UUIDS = simulated_uuids(4)
OPENS = b"node /dev/nvidia%d 1:3 \nend\n"
LOST = b"node /dev/nvidia%d 1:3 /bin/sh: cannot open /dev/nvidia0: Operation not permitted\nend\n"


class Machine(FakeMachine):
    """An engine with CDI, whose images say ``all``.

    Attributes:
        opening: what a look into a server with a card finds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.info["DiscoveredDevices"] = [
            {"Source": "cdi", "ID": f"nvidia.com/gpu={uuid}"} for uuid in UUIDS
        ]
        self.add_image("img", env=["NVIDIA_VISIBLE_DEVICES=all"])
        self.opening = OPENS

    def make(self, *args: Any) -> FakeContainer:
        made = super().make(*args)
        made.inside = lambda _: (
            0,
            self.opening % UUIDS.index(next(iter(made.cards))) if made.cards else b"end\n",
        )
        return made


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def hub(machine: Machine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "EXIT_CONFIRM_SECONDS", 0.0)
    monkeypatch.setattr(inside_watch, "CONFIRM_SECONDS", 0.0)


async def all_cards_can_be_had(hub: RealHub, machine: Machine) -> None:
    await until(lambda: hub.idle and not machine.containers)
    for n in range(4):
        await hub.start(f"probe{n}")
    assert {c for one in machine.live() for c in one.cards} == set(UUIDS)
    assert not machine.violations


# -- leases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "archive", "start"])
async def test_a_failed_start_holds_no_card(hub: RealHub, machine: Machine, operation: str) -> None:
    """dockerspawner#182, kubespawner#427: a failed start left its container behind."""
    machine.fault(operation, "500", -1)
    with pytest.raises(GPURefusal, match="could not be started"):
        await hub.start("ada")
    machine.heal()
    await all_cards_can_be_had(hub, machine)


async def test_a_restart_of_the_hub_changes_no_lease(hub: RealHub, machine: Machine) -> None:
    """jupyterhub#4574, #5107: servers were reported down or killed when the hub restarted."""
    before = {name: (await hub.start(name)).devices for name in ("ada", "ben")}
    ids = set(machine.containers)
    machine.fault("list", "unreachable")
    await hub.restart()
    for name, devices in before.items():
        assert await hub.poll(name) is None
        assert hub.spawner(name).devices == devices
        assert hub.spawner(name).server is not None
    assert set(machine.containers) == ids


async def test_a_container_removed_behind_the_hub_frees_its_card_within_one_poll(
    hub: RealHub, machine: Machine
) -> None:
    """jupyterhub#1632: after ``docker rm -f`` the hub went on believing in the server."""
    machine.rm_f((await hub.start("ada")).object_id)
    assert await hub.poll("ada") == 0
    assert hub.spawner("ada").server is None
    await all_cards_can_be_had(hub, machine)


@pytest.mark.parametrize("operation", ["create", "start"])
async def test_a_start_that_is_cancelled_frees_its_card(
    hub: RealHub, machine: Machine, operation: Any
) -> None:
    """jupyterhub#3597: a pending start could not be cancelled, or left its container."""
    with machine.gate(operation, "before") as gate:
        starting = hub.begin_start("ada")
        await in_thread(gate.wait_arrived)
        await hub.stop("ada")
    assert starting.cancelled()
    await all_cards_can_be_had(hub, machine)


async def test_a_server_shut_down_from_inside_frees_its_card(
    hub: RealHub, machine: Machine
) -> None:
    """dockerspawner#318: after a shutdown from inside the container stayed."""
    machine.exit((await hub.start("ada")).object_id)
    assert await hub.poll("ada") is not None
    await all_cards_can_be_had(hub, machine)


# -- running ------------------------------------------------------------------------------------


async def test_no_driver_in_the_engine_is_short_for_the_user_and_a_fix_for_the_admin(
    hub: RealHub, machine: Machine
) -> None:
    """nvidia-docker#1034: everybody read "could not select device driver"."""
    with machine.gate("create", "after") as gate:
        starting = hub.begin_start("ada")
        await in_thread(gate.wait_arrived)
        [one] = machine.containers.values()
        one.start_error = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
    with pytest.raises(GPURefusal) as refused:
        await starting
    assert "driver" not in str(refused.value)
    assert "This wasn't your mistake" in str(refused.value)
    assert "nvidia-container-toolkit" in refused.value.admin_message
    await all_cards_can_be_had(hub, machine)


async def test_a_card_lost_inside_a_running_server_is_noticed_and_flagged(
    hub: RealHub, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """nvidia-container-toolkit#48, #251, #1227, #1744: NVML "Unknown Error" after a reload."""
    spawner = await hub.start("ada")
    machine.opening = LOST
    spawner.poll_interval = 0

    async def polled_until_flagged() -> None:
        while "can't use its GPU any more" not in caplog.text:
            assert await hub.poll("ada") is None  # it is alive, and keeps its card

    await asyncio.wait_for(polled_until_flagged(), 120)
    assert "daemon-reload" in caplog.text


async def test_a_server_without_a_gpu_sees_none(hub: RealHub, machine: Machine) -> None:
    """nvidia-container-toolkit#451, k8s-device-plugin#87: a CPU container saw all cards."""
    await hub.start("ada", CPU)
    [one] = machine.live()
    env = dict(entry.split("=", 1) for entry in one.env if "=" in entry)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert one.host_config["Runtime"] == "runc"
    assert not one.cards


class Looks:
    """Looks at cards that nobody holds, one after the other."""

    def __init__(self, clean_probes: int) -> None:
        self.health = Health()
        self._limits = Limits(foreign_memory_mib=500, clean_probes=clean_probes)

    def offered_after(self, *devices: Device) -> set[str]:
        """The cards that are given out once the driver has told of these."""
        empty = Seen(Survey(listing()), Claims())
        look = Look(0.0, recalled(Inventory(devices), self.health), empty, empty)
        self.health = health = observe(self.health, look, self._limits)
        seen = see_cards(
            health.inventory, [], Attempts(), HUB, conditions=health.conditions, gone=health.gone
        )
        return {card.uuid for card in seen if isinstance(place(Request(1), [card]), Placement)}


def test_a_card_that_is_gone_or_ill_is_not_offered_and_comes_back_once_it_is_well() -> None:
    """k8s-device-plugin#98, #373, #189, #234: dead ids were given out, healed cards never."""
    looks = Looks(clean_probes=3)
    first, second = cards(2).devices
    ill = replace(second, recovery_action="gpu-reset")
    lost = replace(second, error="GPU is lost")
    changed = replace(first, uuid="GPU-9")
    assert looks.offered_after(first, second) == {"GPU-0", "GPU-1"}
    assert looks.offered_after(first, ill) == {"GPU-0"}
    assert looks.offered_after(first, lost) == {"GPU-0"}
    assert looks.offered_after(first) == {"GPU-0"}
    # Its id has changed: what is offered is the new one, and never the dead one.
    assert looks.offered_after(changed, ill) == {"GPU-9"}
    well = [looks.offered_after(changed, second) for _ in range(3)]
    assert well == [{"GPU-9"}, {"GPU-9"}, {"GPU-9", "GPU-1"}]
    assert looks.offered_after(first, second) >= {"GPU-1"}


def test_a_missing_card_is_not_offered() -> None:
    """pai#4344: a card that had fallen off the bus was still given out."""
    looks = Looks(clean_probes=3)
    three = cards(3).devices
    assert looks.offered_after(*three) == {"GPU-0", "GPU-1", "GPU-2"}
    # It may lose its name with it, or not be told of at all.
    assert looks.offered_after(*three[:2], Device("", 2, error="GPU is lost")) == {"GPU-0", "GPU-1"}
    assert looks.offered_after(*three[:2]) == {"GPU-0", "GPU-1"}


def test_a_card_whose_memory_a_stuck_process_holds_is_not_offered() -> None:
    """pai#3375: a process that could not be killed kept its memory, and others got the card."""
    looks = Looks(clean_probes=1)
    first, second = (replace(d, reserved_mib=600, recovery_action="none") for d in cards(2).devices)
    assert looks.offered_after(replace(first, used_mib=30_000), second) == {"GPU-1"}
    assert looks.offered_after(replace(first, used_mib=0), second) == {"GPU-0", "GPU-1"}
