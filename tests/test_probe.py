"""The driver probe over a stand-in library: what it tells, and what it makes of every fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from gpuspawner import nvml
from gpuspawner.devices import Device, Inventory, Process
from gpuspawner.errors import ProbeError
from gpuspawner.inventory import NVMLSource
from gpuspawner.nvml_calls import UnreadableError
from gpuspawner.probe import Attributor, container_ids
from standin import (
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FakeDriver,
    FakeProcess,
    FakeSlice,
    Fault,
    built_or_skip,
)

A, B = "a1" * 32, "b2" * 32


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_or_skip(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library: Path) -> FakeDriver:
    return FakeDriver(library, cards=2)


async def read(driver: FakeDriver) -> Inventory:
    driver.write()
    return await NVMLSource(environment=driver.environment()).read()


async def test_a_healthy_machine(driver: FakeDriver) -> None:
    driver.cards[0].used_mib = 1234
    driver.cards[0].display = True
    inventory = await read(driver)
    assert inventory.devices == (
        Device(
            uuid=driver.uuids[0],
            index=0,
            model="NVIDIA A100-SXM4-40GB",
            minor=1,
            pci_bus_id="00000000:01:00.0",
            memory_mib=40960,
            used_mib=1234,
            reserved_mib=600,
            mig=False,
            recovery_action="none",
            display=True,
        ),
        Device(
            uuid=driver.uuids[1],
            index=1,
            model="NVIDIA A100-SXM4-40GB",
            minor=0,
            pci_bus_id="00000000:02:00.0",
            memory_mib=40960,
            used_mib=0,
            reserved_mib=600,
            mig=False,
            recovery_action="none",
        ),
    )
    assert (inventory.driver_version, inventory.cuda_version) == ("550.54.15", "12.4")
    assert (inventory.source, inventory.complete) == ("nvml", True)


async def test_a_machine_without_cards(driver: FakeDriver) -> None:
    driver.cards.clear()
    inventory = await read(driver)
    assert inventory.devices == ()
    assert inventory.complete


async def test_what_is_not_supported_is_none(driver: FakeDriver) -> None:
    card = driver.cards[0]
    card.minor = card.memory_mib = card.mig = card.recovery = card.display = None
    driver.faults = [
        Fault("nvmlDeviceGetName", 0, NOT_SUPPORTED),
        Fault("nvmlDeviceGetPciInfo_v3", 0, NOT_SUPPORTED),
        Fault("nvmlDeviceGetComputeRunningProcesses_v3", 0, NOT_SUPPORTED),
        Fault("nvmlSystemGetDriverVersion", None, NOT_SUPPORTED),
        Fault("nvmlSystemGetCudaDriverVersion_v2", None, 999),
    ]
    inventory = await read(driver)
    assert inventory.devices[0] == Device(uuid=driver.uuids[0], index=0)
    assert inventory.devices[1].model == "NVIDIA A100-SXM4-40GB"
    assert inventory.driver_version is None
    assert inventory.cuda_version is None
    assert inventory.complete


#: What drivers before 510 lack.
NEWER_THAN_470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetFieldValues",
)


async def test_an_old_library_lacks_functions(tmp_path: Path) -> None:
    driver = FakeDriver(built_or_skip(tmp_path, without=NEWER_THAN_470), cards=1)
    driver.cards[0].used_mib = 100
    driver.cards[0].processes = [FakeProcess(2**22 + 1, 100)]
    card = (await read(driver)).devices[0]
    # The old call counts the driver's reserve as used, and tells no reserve.
    assert (card.memory_mib, card.used_mib, card.reserved_mib) == (40960, 700, None)
    assert [p.pid for p in card.processes] == [2**22 + 1]
    assert card.recovery_action is None
    assert not card.error


# -- lost and ill cards -----------------------------------------------------------------------

PER_CARD = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetDisplayActive",
    "nvmlDeviceGetNvLinkState",
)


@pytest.mark.parametrize("function", PER_CARD)
async def test_a_lost_card_hides_no_other(driver: FakeDriver, function: str) -> None:
    driver.lose(0, function)
    inventory = await read(driver)
    lost, well = inventory.devices
    assert (lost.uuid, lost.index) == (driver.uuids[0], 0)
    assert lost.error.startswith("GPU is lost (nvml")
    assert lost.ill == lost.error
    assert (well.uuid, well.index, well.error) == (driver.uuids[1], 1, "")
    assert inventory.complete


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, 999])
async def test_a_card_without_a_name_makes_the_inventory_incomplete(
    driver: FakeDriver, function: str, code: int
) -> None:
    driver.faults = [Fault(function, 0, code)]
    inventory = await read(driver)
    assert inventory.devices[0].uuid == ""
    assert inventory.devices[0].error
    assert inventory.devices[1].uuid == driver.uuids[1]
    assert not inventory.complete
    assert set(inventory.by_uuid) == {driver.uuids[1]}


async def test_processes_that_may_not_be_seen_are_not_none(driver: FakeDriver) -> None:
    driver.faults = [Fault("nvmlDeviceGetComputeRunningProcesses_v3", 0, NO_PERMISSION)]
    inventory = await read(driver)
    assert "Insufficient Permissions" in inventory.devices[0].error
    assert not inventory.devices[1].error


@pytest.mark.parametrize(
    ("number", "word"),
    [(0, "none"), (1, "gpu-reset"), (2, "node-reboot"), (3, "drain-p2p"), (99, "unknown-99")],
)
async def test_the_recovery_action(driver: FakeDriver, number: int, word: str) -> None:
    driver.cards[0].recovery = number
    card = (await read(driver)).devices[0]
    assert card.recovery_action == word
    assert bool(card.ill) == (number != 0)


# -- processes --------------------------------------------------------------------------------


async def test_processes_of_every_kind(driver: FakeDriver) -> None:
    # Above the kernel's highest PID, so that none of them lives.
    first = 2**22
    driver.cards[0].processes = [
        FakeProcess(first + 3, 10, "g"),
        FakeProcess(first + 2, None, "c"),
        FakeProcess(first + 1, 30, "m"),
        FakeProcess(first + 2, None, "g"),
        FakeProcess(first + 1, 30, "c"),
    ]
    card = (await read(driver)).devices[0]
    assert [(p.pid - first, p.kind, p.used_mib, p.container_id) for p in card.processes] == [
        (1, "compute", 30, None),
        (2, "compute", None, None),
        (2, "graphics", None, None),
        (3, "graphics", 10, None),
    ]


async def test_a_living_process_outside_containers(driver: FakeDriver) -> None:
    driver.cards[1].processes = [FakeProcess(os.getpid(), 5)]
    (process,) = (await read(driver)).devices[1].processes
    assert (process.pid, process.container_id) == (os.getpid(), None)


class Listed:
    """One process as nvidia-ml-py gives it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.usedGpuMemory = 2**20


def answers(
    monkeypatch: pytest.MonkeyPatch, *lists: list[int] | int
) -> Callable[[], tuple[Process, ...]]:
    """Let NVML's compute list be these, one after the other; a number is an error."""
    left = list(lists)

    def compute(_: object) -> list[Listed]:
        answer = left.pop(0)
        if isinstance(answer, int):
            raise pynvml.NVMLError(answer)
        return [Listed(pid) for pid in answer]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v3", compute)
    for name in ("MPSCompute", "Graphics"):
        function = f"nvmlDeviceGet{name}RunningProcesses_v3"
        monkeypatch.setattr(pynvml, function, lambda _: [])

    def container_of(pid: int) -> str | None:
        if pid == 13:
            raise ProcessLookupError
        return A

    return lambda: nvml._processes(None, container_of, sliced=False)


def test_a_process_that_ended_meanwhile_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = answers(monkeypatch, [7, 13], [7])()
    assert found == (Process(7, "compute", 1, A),)


def test_a_process_that_proc_never_shows_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answers(monkeypatch, [7, 13], [7, 13])()
    assert found == (Process(7, "compute", 1, A), Process(13, "compute", 1, None))


def test_processes_that_come_while_we_look(monkeypatch: pytest.MonkeyPatch) -> None:
    too_small = 7
    assert answers(monkeypatch, too_small, too_small, [7])() == (Process(7, "compute", 1, A),)
    with pytest.raises(UnreadableError):
        answers(monkeypatch, too_small, too_small, too_small)()


@pytest.mark.parametrize(
    ("cgroup", "ids"),
    [
        (f"12:pids:/docker/{A}\n11:cpu:/docker/{A}\n0::/\n", (A,)),
        (f"0::/system.slice/docker-{A}.scope\n", (A,)),
        (f"0::/system.slice/docker-{A}.scope/init.scope\n", (A,)),
        (f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{A}.scope\n", (A,)),
        (f"1:name=systemd:/docker/{A}/docker/{B}\n", (A, B)),
        (f"0::/machine.slice/libpod-{A}.scope/container\n", (A,)),
        (f"0::/machine.slice/libpod-conmon-{A}.scope\n", ()),
        (f"0::/../docker-{A}.scope\n", (A,)),
        (f"4:memory:/a:b/docker/{A}\n", (A,)),
        ("0::/user.slice/session-3.scope\n", ()),
        (f"0::/docker/{A}0\n", ()),
        (f"0::/docker/{A[:-1]}\n", ()),
        ("", ()),
        ("nonsense", ()),
    ],
)
def test_container_ids(cgroup: str, ids: tuple[str, ...]) -> None:
    assert container_ids(cgroup) == ids


@pytest.fixture
def proc(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    def make(processes: dict[str, str]) -> Path:
        for pid, cgroup in processes.items():
            (tmp_path / pid).mkdir()
            (tmp_path / pid / "cgroup").write_text(cgroup)
        return tmp_path

    return make


def test_attribution_on_the_host(proc: Callable[[dict[str, str]], Path]) -> None:
    container_of = Attributor(
        proc({"self": "0::/\n", "7": f"0::/docker-{A}.scope\n", "8": "0::/x\n"})
    )
    assert container_of(7) == A
    assert container_of(8) is None
    with pytest.raises(ProcessLookupError):
        container_of(9)


def test_attribution_leaves_out_our_own_container(proc: Callable[[dict[str, str]], Path]) -> None:
    # The hub in container A: with its own /proc, a host PID names some process of A by chance.
    container_of = Attributor(
        proc({"self": f"1:x:/docker/{A}\n", "7": f"1:x:/docker/{A}\n", "8": f"1:x:/docker/{B}\n"})
    )
    assert container_of(7) is None
    assert container_of(8) == B


def test_attribution_with_an_engine_inside_a_container(
    proc: Callable[[dict[str, str]], Path],
) -> None:
    nested = f"1:x:/docker/{A}/docker/{B}\n"
    assert Attributor(proc({"self": "1:x:/\n", "7": nested}))(7) == A


def test_attribution_beside_an_engine_in_our_container(
    proc: Callable[[dict[str, str]], Path],
) -> None:
    nested = f"1:x:/docker/{A}/docker/{B}\n"
    assert Attributor(proc({"self": f"1:x:/docker/{A}\n", "7": nested}))(7) == B


# -- MIG --------------------------------------------------------------------------------------


async def test_slices_with_gaps(driver: FakeDriver) -> None:
    pid = 2**22 + 1
    card = driver.cards[0]
    card.mig = True
    card.slices = [
        FakeSlice("MIG-11111111-2222-3333-4444-555555555555", 1, processes=[FakeProcess(pid, 9)]),
        FakeSlice(
            "MIG-11111111-2222-3333-4444-666666666666",
            5,
            name="NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
            memory_mib=19968,
        ),
    ]
    card.processes = [FakeProcess(pid + 1, 9)]
    inventory = await read(driver)
    device = inventory.devices[0]
    assert device.mig is True
    assert [(s.index, s.profile, s.memory_mib, s.parent) for s in device.slices] == [
        (1, "1g.5gb", 4864, device.uuid),
        (5, "1c.3g.20gb", 19968, device.uuid),
    ]
    assert [p.pid for p in device.slices[0].processes] == [pid]
    assert [p.pid for p in device.processes] == [pid + 1]
    assert inventory.neighbours(device.slices[1].uuid) == {device.uuid}
    assert inventory.devices[1].mig is False


async def test_a_sliced_card_seen_without_root(driver: FakeDriver) -> None:
    card = driver.cards[0]
    card.mig = True
    card.slices = [FakeSlice("MIG-11111111-2222-3333-4444-555555555555", 0)]
    # An ordinary user may list each slice's processes, not the whole card's.
    driver.cards[0].slices[0].processes = [FakeProcess(2**22 + 1)]
    driver.faults = [Fault("nvmlDeviceGetComputeRunningProcesses_v3", 0, NO_PERMISSION)]
    device = (await read(driver)).devices[0]
    assert not device.error
    assert [p.pid for p in device.slices[0].processes] == [2**22 + 1]


@pytest.mark.parametrize(
    ("gpu", "compute", "memory_mib", "profile"),
    [(1, 1, 4864, "1g.5gb"), (3, 3, 19968, "3g.20gb"), (3, 1, 19968, "1c.3g.20gb")],
)
async def test_profiles_of_drivers_that_leave_them_out_of_the_name(
    driver: FakeDriver, gpu: int, compute: int, memory_mib: int, profile: str
) -> None:
    card = driver.cards[0]
    card.mig = True
    card.slices = [FakeSlice("MIG-x", 0, "NVIDIA A100", memory_mib, gpu, compute)]
    assert (await read(driver)).devices[0].slices[0].profile == profile


async def test_a_lost_card_while_slices_are_read(driver: FakeDriver) -> None:
    driver.cards[0].mig = True
    driver.lose(0, "nvmlDeviceGetMigDeviceHandleByIndex")
    lost, well = (await read(driver)).devices
    assert lost.error.startswith("GPU is lost")
    assert not well.error


async def test_a_slice_without_a_name(driver: FakeDriver) -> None:
    driver.cards[0].mig = True
    driver.cards[0].slices = [FakeSlice("-", 3)]
    inventory = await read(driver)
    assert inventory.devices[0].slices == ()
    assert not inventory.devices[0].error
    assert not inventory.complete


# -- links ------------------------------------------------------------------------------------


async def test_cards_joined_directly(driver: FakeDriver) -> None:
    a, b = driver.cards
    a.nvlinks = {0: b.bus_id, 3: b.bus_id, 5: "00000000:FF:00.0"}
    b.nvlinks = {1: a.bus_id, 2: a.bus_id}
    driver.pairs[0, 1] = (0, 0, 20)
    (link,) = (await read(driver)).links
    assert (link.a, link.b) == (a.uuid, b.uuid)
    assert (link.nvlinks, link.p2p, link.ancestor) == (2, True, "multiple")


async def test_cards_joined_by_a_switch(driver: FakeDriver) -> None:
    for card in driver.cards:
        card.nvlinks = dict.fromkeys(range(18), "00000000:C0:00.0")
    driver.pairs[0, 1] = (0, 0, 50)
    (link,) = (await read(driver)).links
    assert (link.nvlinks, link.p2p, link.ancestor) == (18, True, "system")


async def test_cards_with_links_to_others_only(driver: FakeDriver) -> None:
    for card in driver.cards:
        card.nvlinks = {0: "00000000:C0:00.0"}
    driver.pairs[0, 1] = (3, 5, 30)
    (link,) = (await read(driver)).links
    assert (link.nvlinks, link.p2p, link.ancestor) == (0, False, "hostbridge")


async def test_links_that_are_not_told(driver: FakeDriver) -> None:
    (link,) = (await read(driver)).links
    assert (link.nvlinks, link.p2p, link.ancestor) == (None, None, None)


async def test_a_lost_card_has_no_links(driver: FakeDriver) -> None:
    driver.lose(0)
    assert (await read(driver)).links == ()


async def test_a_fault_in_a_link_costs_no_card(driver: FakeDriver) -> None:
    driver.pairs[0, 1] = (0, 0, 50)
    driver.lose(0, "nvmlDeviceGetTopologyCommonAncestor")
    inventory = await read(driver)
    assert not any(d.error for d in inventory.devices)
    assert inventory.links[0].ancestor is None


def test_numa_nodes_come_from_the_kernel(tmp_path: Path) -> None:
    at = tmp_path / "bus/pci/devices/0000:0a:00.0"
    at.mkdir(parents=True)
    (at / "numa_node").write_text("1\n")
    assert nvml._numa_node("00000000:0A:00.0", tmp_path) == 1
    (at / "numa_node").write_text("-1\n")
    assert nvml._numa_node("00000000:0A:00.0", tmp_path) is None
    assert nvml._numa_node("00000000:0B:00.0", tmp_path) is None
    assert nvml._numa_node(None, tmp_path) is None


# -- the whole driver -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "fix"),
    [
        (9, "no-driver", "modprobe nvidia"),
        (18, "version-mismatch", "reboot"),
        (13, "driver-too-old", "Update the driver"),
        (4, "no-permission", "/dev/nvidiactl"),
        (12, "no-library", "Install the NVIDIA driver"),
        (999, "driver-error", "nvidia-smi"),
    ],
)
async def test_each_failure_of_the_driver_has_its_own_words(
    driver: FakeDriver, code: int, kind: str, fix: str
) -> None:
    driver.faults = [Fault("nvmlInitWithFlags", action=code)]
    with pytest.raises(ProbeError, match=fix) as caught:
        await read(driver)
    assert caught.value.kind == kind
    assert str(code) in str(caught.value)


async def test_it_comes_back_once_the_fault_is_gone(driver: FakeDriver) -> None:
    source = NVMLSource(environment=driver.environment())
    driver.faults = [Fault("nvmlInitWithFlags", action=18)]
    driver.write()
    with pytest.raises(ProbeError):
        await source.read()
    driver.heal()
    assert len((await source.read()).devices) == 2


async def test_a_driver_that_goes_away_half_way(driver: FakeDriver) -> None:
    driver.faults = [Fault("nvmlDeviceGetMemoryInfo_v2", 1, 9)]
    with pytest.raises(ProbeError) as caught:
        await read(driver)
    assert caught.value.kind == "no-driver"


async def test_no_card_may_be_opened(driver: FakeDriver) -> None:
    driver.faults = [Fault("nvmlDeviceGetHandleByIndex_v2", None, NO_PERMISSION)]
    with pytest.raises(ProbeError) as caught:
        await read(driver)
    assert caught.value.kind == "no-permission"


async def test_an_ancient_library(tmp_path: Path) -> None:
    driver = FakeDriver(built_or_skip(tmp_path, without=["nvmlInitWithFlags"]))
    with pytest.raises(ProbeError) as caught:
        await read(driver)
    assert caught.value.kind == "driver-too-old"


async def test_no_library(tmp_path: Path) -> None:
    # A file of that name that is no library: the same on machines that have a driver.
    (tmp_path / "libnvidia-ml.so.1").write_text("")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    with pytest.raises(ProbeError) as caught:
        await NVMLSource(environment=environment).read()
    assert caught.value.kind == "no-library"
    assert "c.GPUPool.inventory = 'simulated'" in str(caught.value)


# -- the process ------------------------------------------------------------------------------


def run_probe(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_library_that_prints_does_not_spoil_the_answer(driver: FakeDriver) -> None:
    driver.faults = [Fault("nvmlDeviceGetUUID", action="print")]
    driver.write()
    environment: dict[str, Any] = {"LD_LIBRARY_PATH": str(driver.directory)}
    done = run_probe("-m", "gpuspawner.probe", **environment)
    assert done.returncode == 0
    assert done.stdout.startswith('{"ok": true')
    assert done.stdout.count("\n") == 1
    assert "a library that prints" in done.stderr


def test_without_the_python_package() -> None:
    code = (
        "import sys; sys.modules['pynvml'] = None\n"
        "from gpuspawner.probe import probe\n"
        "print(probe())"
    )
    done = run_probe("-c", code)
    assert "'kind': 'no-library'" in done.stdout
    assert "pip install nvidia-ml-py" in done.stdout


def test_the_probe_imports_little() -> None:
    code = (
        "import sys, gpuspawner.probe, gpuspawner.nvml\n"
        "heavy = {'jupyterhub', 'dockerspawner', 'docker', 'traitlets', 'tornado', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run_probe("-c", code).stdout == "[]\n"
