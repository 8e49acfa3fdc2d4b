"""``GPUPool.inventory``: every source keeps the same contract, and wrong values are explained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner import inventory as module
from gpuspawner.devices import TOPOLOGY_LEVELS, Inventory
from gpuspawner.errors import ConfigError, ProbeError
from gpuspawner.inventory import (
    FixedSource,
    NVMLSource,
    SimulatedSource,
    Source,
    source_from_config,
)
from gpuspawner.simulated_inventory import simulated_inventory
from gpuspawner.topology import Tier, topology_of
from ground.leftovers import has_ended
from standin import FakeDriver, Fault, built_or_skip

UUID_A = "GPU-5d0e2b3c-8f41-4a6b-9c1d-2e7f60a1b2c3"
UUID_B = "GPU-6d0e2b3c-8f41-4a6b-9c1d-2e7f60a1b2c3"
SLICE = "MIG-3f0c7b1e-2a55-5d0c-8a30-5b7c1f0e9d11"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_or_skip(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library: Path) -> FakeDriver:
    return FakeDriver(library)


def read_now(source: Source) -> Inventory:
    return asyncio.run(source.read())


# -- the contract of every source -------------------------------------------------------------


def fixed() -> Source:
    entries = [
        {"uuid": UUID_A, "model": "NVIDIA A100", "memory_gib": 40},
        {"uuid": UUID_B, "model": "NVIDIA L4", "memory_mib": 23034},
    ]
    return FixedSource(entries)


@pytest.fixture(params=["fixed", "simulated", "nvml"])
def source(request: pytest.FixtureRequest) -> Source:
    if request.param == "fixed":
        return fixed()
    if request.param == "simulated":
        return SimulatedSource(simulated_inventory(2))
    driver: FakeDriver = request.getfixturevalue("driver")
    driver.pairs[0, 1] = (0, 0, 40)
    driver.write()
    return NVMLSource(environment=driver.environment())


async def test_contract(source: Source) -> None:
    inventory = await source.read()
    devices = inventory.devices
    assert inventory.source in ("fixed", "simulated", "nvml")
    assert inventory.complete
    assert len(devices) >= 2
    assert all(d.uuid.startswith("GPU-") and not d.ill for d in devices)
    assert list(inventory.by_uuid) == [d.uuid for d in devices]
    assert len({d.index for d in devices}) == len(devices)
    minors = [d.minor for d in devices if d.minor is not None]
    assert len(set(minors)) == len(minors)
    assert all(d.model and d.memory_mib and d.memory_mib > 1024 for d in devices)
    for link in inventory.links:
        assert inventory.by_uuid[link.a].index < inventory.by_uuid[link.b].index
        assert link.ancestor is None or link.ancestor in TOPOLOGY_LEVELS
    assert Inventory.from_dict(json.loads(json.dumps(inventory.to_dict()))) == inventory


async def test_contract_same_answer_twice(source: Source) -> None:
    assert await source.read() == await source.read()


def test_contract_outside_a_loop(source: Source) -> None:
    assert read_now(source) == read_now(source)


def test_contract_description(source: Source) -> None:
    assert source.description
    assert "\n" not in source.description


# -- simulated --------------------------------------------------------------------------------


def test_simulated_cards_are_the_same_for_every_hub() -> None:
    few, many = simulated_inventory(2), simulated_inventory(5, "NVIDIA L4", 23034)
    assert [d.uuid for d in few.devices] == [d.uuid for d in many.devices[:2]]
    assert few.devices[0].uuid == "GPU-3e4bf9c0-467d-5039-9ce5-1e51c17da69c"
    assert {(d.model, d.memory_mib) for d in many.devices} == {("NVIDIA L4", 23034)}


@pytest.mark.parametrize("field", ["uuid", "index", "minor", "pci_bus_id"])
def test_simulated_cards_have_names_of_their_own(field: str) -> None:
    devices = simulated_inventory(256).devices
    assert len({getattr(d, field) for d in devices}) == 256


def test_slices_may_be_written_down() -> None:
    old = f"MIG-{UUID_A}/7/0"
    written = {"uuid": UUID_A, "slices": {SLICE: "1g.10gb", old: "3g.40gb"}}
    first, second = read_now(source_from_config([written, {"uuid": UUID_B}])).devices
    assert (first.mig, second.mig, second.slices) == (True, None, ())
    assert [(s.uuid, s.profile, s.memory_mib, s.parent) for s in first.slices] == [
        (SLICE, "1g.10gb", 10240, UUID_A),
        (old, "3g.40gb", 40960, UUID_A),
    ]


def test_simulated_slices_are_cut_from_each_card() -> None:
    value = {"simulated": 2, "mig": ["3g.20gb", "1g.5gb+me"]}
    inventory = read_now(source_from_config(value))
    assert [d.mig for d in inventory.devices] == [True, True]
    assert len(inventory.slice_by_uuid) == 4
    for device in inventory.devices:
        assert device.uuid in {d.uuid for d in simulated_inventory(2).devices}
        assert [(s.profile, s.memory_mib, s.parent, s.index) for s in device.slices] == [
            ("3g.20gb", 20480, device.uuid, 0),
            ("1g.5gb+me", 5120, device.uuid, 1),
        ]
    assert all(uuid.startswith("MIG-") for uuid in inventory.slice_by_uuid)
    assert inventory == read_now(source_from_config(value)), "the same for every hub"


def test_simulated_groups_are_linked_inside_and_not_between() -> None:
    inventory = read_now(source_from_config({"simulated": 6, "nvlink_groups": [3, 2]}))
    ids = [d.uuid for d in inventory.devices]
    assert [d.numa_node for d in inventory.devices] == [0, 0, 0, 1, 1, 5]
    topology = topology_of(inventory)
    assert topology.joint(ids[0], ids[2]).tier == Tier.NVLINK
    assert topology.joint(ids[3], ids[4]).tier == Tier.NVLINK
    assert topology.joint(ids[2], ids[3]).tier == Tier.NONE
    assert topology.joint(ids[4], ids[5]).tier == Tier.NONE


def test_simulated_cards_are_all_linked() -> None:
    inventory = simulated_inventory(4)
    assert len(inventory.links) == 6
    assert all(link.nvlinks and link.p2p for link in inventory.links)


# -- the configured value ---------------------------------------------------------------------


def test_values_that_are_right() -> None:
    assert isinstance(source_from_config("nvml"), NVMLSource)
    assert len(read_now(source_from_config("simulated")).devices) == 4
    eight = read_now(source_from_config({"simulated": 8, "model": "X", "memory_mib": 5000}))
    assert [(d.model, d.memory_mib) for d in eight.devices] == [("X", 5000)] * 8
    assert len(read_now(source_from_config(({"uuid": UUID_A},))).devices) == 1


def test_a_fixed_list_fills_what_is_left_out() -> None:
    inventory = read_now(
        source_from_config(
            [
                {"uuid": UUID_A, "memory_gib": 79.5, "pci_bus_id": "0000:0a:00.0"},
                {"uuid": UUID_B, "index": 4, "minor": 7, "numa_node": 1, "display": True},
            ]
        )
    )
    a, b = inventory.devices
    assert (a.index, a.minor, a.memory_mib, a.pci_bus_id) == (0, None, 81408, "00000000:0A:00.0")
    assert (b.index, b.minor, b.memory_mib, b.numa_node, b.display) == (4, 7, None, 1, True)


CARD = {"uuid": UUID_A}
WRONG: list[tuple[Any, list[str]]] = [
    ("NVML", ["'NVML'", "simulated"]),
    (None, ["None", "simulated"]),
    (4, ["4", "c.GPUPool.inventory = "]),
    ([], ["empty list", "uuid"]),
    ({}, ["no key 'simulated'", "c.GPUPool.inventory = "]),
    ({"simulated": 4, "modell": "x"}, ["'modell'", "model"]),
    ({"simulated": 0}, ["['simulated'] is 0", "from 1 to 256"]),
    ({"simulated": True}, ["['simulated'] is True"]),
    ({"simulated": "4"}, ["['simulated'] is '4'"]),
    ({"simulated": 257}, ["257"]),
    ({"simulated": 1, "model": ""}, ["['model'] is ''", "A100"]),
    ({"simulated": 1, "memory_mib": 1.5}, ["['memory_mib'] is 1.5", "40960"]),
    ({"simulated": 1, "memory_mib": 0}, ["['memory_mib'] is 0"]),
    ({"simulated": 1, "mig": "1g.5gb"}, ["['mig'] is '1g.5gb'", "['3g.20gb', '2g.10gb']"]),
    ({"simulated": 1, "mig": ["1g"]}, ["['mig'] is ['1g']", "['3g.20gb', '2g.10gb']"]),
    ({"simulated": 1, "mig": ["3g.20gb"] * 3}, ["together 61440 MiB", "40960 MiB", "fewer"]),
    ({"simulated": 4, "nvlink_groups": [2, 3]}, ["['nvlink_groups'] is [2, 3]", "at most 4"]),
    ({"simulated": 4, "nvlink_groups": [0]}, ["['nvlink_groups'] is [0]", "such as [2, 2]"]),
    ({"simulated": 4, "nvlink_groups": 2}, ["['nvlink_groups'] is 2"]),
    ([UUID_A], ["inventory[0] is 'GPU-", "dict such as"]),
    ([{"model": "x"}], ["inventory[0] has no 'uuid'", "nvidia-smi -L"]),
    ([CARD, {"uuid": "GPU-1"}], ["inventory[1]['uuid'] is 'GPU-1'", "nvidia-smi -L"]),
    ([{"uuid": UUID_A.upper()}], ["lower case"]),
    ([{"uuid": f"{UUID_A}\n"}], ["inventory[0]['uuid']"]),
    ([{"uuid": UUID_A, "slices": {}}], ["inventory[0]['slices'] is {}", "'1g.10gb'"]),
    (
        [{"uuid": UUID_A, "slices": {"MIG-1": "1g.10gb"}}],
        ["inventory[0]['slices']", "nvidia-smi -L"],
    ),
    ([{"uuid": UUID_A, "slices": {SLICE: "1g"}}], ["inventory[0]['slices']", "'1g.10gb'"]),
    (
        [
            {"uuid": UUID_A, "slices": {SLICE: "1g.10gb"}},
            {"uuid": UUID_B, "slices": {SLICE: "1g.10gb"}},
        ],
        [f"the slice '{SLICE}' in two cards"],
    ),
    ([{"uuid": "MIG-5d0e2b3c-8f41-4a6b-9c1d-2e7f60a1b2c3"}], ["inventory[0]['uuid']"]),
    ([{"uuid": 7}], ["inventory[0]['uuid'] is 7"]),
    ([{**CARD, "memory": 40}], ["unknown field 'memory'", "memory_gib"]),
    ([{**CARD, 3: 40}], ["unknown field 3"]),
    ([{**CARD, "memory_gib": -1}], ["inventory[0]['memory_gib'] is -1", "GiB"]),
    ([{**CARD, "memory_gib": float("nan")}], ["inventory[0]['memory_gib'] is nan"]),
    ([{**CARD, "memory_gib": True}], ["inventory[0]['memory_gib'] is True"]),
    ([{**CARD, "memory_mib": 1.5}], ["inventory[0]['memory_mib'] is 1.5", "MiB"]),
    ([{**CARD, "memory_mib": 1, "memory_gib": 1}], ["both 'memory_gib' and 'memory_mib'"]),
    ([{**CARD, "index": -1}], ["inventory[0]['index'] is -1"]),
    ([{**CARD, "minor": "0"}], ["inventory[0]['minor'] is '0'", "/dev/nvidiaN"]),
    ([{**CARD, "model": " "}], ["inventory[0]['model']"]),
    ([{**CARD, "numa_node": None}], ["inventory[0]['numa_node'] is None"]),
    ([{**CARD, "display": 1}], ["inventory[0]['display'] is 1", "True"]),
    ([{**CARD, "pci_bus_id": "0A:00.0"}], ["inventory[0]['pci_bus_id']", "00000000:0A:00.0"]),
    ([CARD, CARD], ["inventory[1]", "uuid", "inventory[0]"]),
    ([CARD, {"uuid": UUID_B, "index": 0}], ["inventory[1]", "index 0", "inventory[0]"]),
    ([{**CARD, "minor": 0}, {"uuid": UUID_B, "minor": 0}], ["inventory[1]", "minor 0"]),
    (
        [
            {**CARD, "pci_bus_id": "0000:0a:00.0"},
            {"uuid": UUID_B, "pci_bus_id": "00000000:0A:00.0"},
        ],
        ["inventory[1]", "pci_bus_id"],
    ),
]


@pytest.mark.parametrize(("value", "words"), WRONG, ids=[str(value)[:50] for value, _ in WRONG])
def test_values_that_are_wrong(value: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        source_from_config(value)
    assert "GPUPool.inventory" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
fields = st.sampled_from(["uuid", "model", "memory_gib", "memory_mib", "index", "pci_bus_id"])
cards = st.lists(st.dictionaries(fields, junk | st.just(UUID_A), max_size=4), max_size=3)
simulated = st.dictionaries(
    st.sampled_from(["simulated", "model", "memory_mib", "mig", "nvlink_groups"]), junk
)


@given(junk | cards | simulated)
def test_junk_is_a_config_error_or_a_source(value: Any) -> None:
    try:
        source = source_from_config(value)
    except ConfigError:
        return
    assert source.description


# -- the probe's process ----------------------------------------------------------------------


#: A probe that finds a driver and no card.
NO_CARDS = """print('{"ok": true, "inventory": {"devices": []}}')"""


def code(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the probe be this Python text instead."""
    monkeypatch.setattr(module, "_command", lambda _: [sys.executable, "-c", text])


async def test_a_hang_ends_at_the_deadline(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.faults = [Fault("nvmlDeviceGetMemoryInfo_v2", 1, "hang")]
    driver.write()
    # Long enough for a busy machine to get as far as the hang.
    source = NVMLSource(8.0, driver.environment())
    with pytest.raises(ProbeError, match="in nvmlDeviceGetMemoryInfo") as caught:
        await source.read()
    assert caught.value.kind == "timeout"
    assert "persistence mode" in str(caught.value)
    driver.heal()
    monkeypatch.setattr(source, "_deadline_seconds", 60.0)
    assert len((await source.read()).devices) == 4


async def test_the_whole_process_group_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A helper that the library started holds the pipe open after the probe is gone.
    pid_file = tmp_path / "pid"
    code(
        monkeypatch,
        "import subprocess, signal\n"
        f"child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'new')!r}, 'w').write(str(child.pid))\n"
        f"import os; os.rename({str(tmp_path / 'new')!r}, {str(pid_file)!r})\n"
        "signal.pause()",
    )
    with pytest.raises(ProbeError) as caught:
        await NVMLSource(8.0).read()
    assert caught.value.kind == "timeout"
    child = int(pid_file.read_text())
    # The signal is sent; the kernel carries it out when it next runs the process.
    deadline = time.monotonic() + 120
    while not has_ended(child):
        assert time.monotonic() < deadline, f"{child} still runs"
        await asyncio.sleep(0.01)


async def test_a_probe_that_cannot_be_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code(monkeypatch, "import signal; signal.pause()")
    monkeypatch.setattr(module, "_REAP_SECONDS", 0.05)
    spared: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, _: spared.append(pid))
    source = NVMLSource(0.05)
    with pytest.raises(ProbeError, match="no answer within") as caught:
        await source.read()
    # It is not joined by a second one, however often we are asked.
    for _ in range(2):
        with pytest.raises(ProbeError, match=rf"process {spared[0]}.*can't be killed") as caught:
            await source.read()
        assert caught.value.kind == "timeout"
    assert len(spared) == 1
    # Once it is gone, probes begin again.
    kill(spared[0], signal.SIGKILL)
    assert source._stuck is not None
    source._stuck.communicate()
    code(monkeypatch, NO_CARDS)
    monkeypatch.setattr(os, "killpg", kill)
    monkeypatch.setattr(source, "_deadline_seconds", 60.0)
    assert (await source.read()).devices == ()


async def test_a_crash_names_signal_and_call(driver: FakeDriver) -> None:
    driver.faults = [Fault("nvmlDeviceGetUUID", action="abort")]
    driver.write()
    with pytest.raises(ProbeError, match=r"SIGABRT.*in nvmlDeviceGetUUID") as caught:
        await NVMLSource(environment=driver.environment()).read()
    assert caught.value.kind == "crashed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print('no json')",
        "print('[]')",
        "print('{}')",
        "print('{\"ok\": true}')",
        'print(\'{"ok": true, "inventory": {"devices": [{"uuid": 1, "nonsense": 2}]}}\')',
        "print('{\"ok\": false}')",
        "raise SystemExit('a cause')",
        "import os; os.write(1, bytes([255, 254]))",
    ],
)
async def test_answers_that_are_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    code(monkeypatch, text)
    with pytest.raises(ProbeError, match="no usable answer") as caught:
        await NVMLSource().read()
    assert caught.value.kind == "bad-output"
    assert ("a cause" in text) == ("a cause" in str(caught.value))


async def test_no_process_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_command", lambda _: ["/nonexistent/python"])
    with pytest.raises(ProbeError, match="can't be started") as caught:
        await NVMLSource().read()
    assert caught.value.kind == "crashed"


async def test_one_probe_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, entered, gate = threading.Lock(), threading.Event(), threading.Event()

    def probe() -> Inventory:
        assert inside.acquire(blocking=False), "two probes at once"
        entered.set()
        gate.wait()
        inside.release()
        return Inventory()

    source = NVMLSource()
    monkeypatch.setattr(source, "_probe", probe)
    readings = [asyncio.create_task(source.read()) for _ in range(4)]
    await asyncio.get_running_loop().run_in_executor(None, entered.wait)
    gate.set()
    assert await asyncio.gather(*readings) == [Inventory()] * 4


async def test_a_cancelled_read_leaves_the_source_usable(driver: FakeDriver) -> None:
    source = NVMLSource(environment=driver.environment())
    reading = asyncio.create_task(source.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len((await source.read()).devices) == 4


async def test_the_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The probe ends only after this loop has done something for it.
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code(
        monkeypatch,
        f"open({str(gate)!r}).read()\n{NO_CARDS}",
    )
    reading = asyncio.create_task(NVMLSource().read())
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, gate.write_text, "go")
    assert (await reading).devices == ()


@pytest.mark.parametrize("spoiled", ["json.py", "gpuspawner/__init__.py"])
async def test_the_hubs_folder_does_not_lead_the_probe_astray(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoiled: str
) -> None:
    (tmp_path / spoiled).parent.mkdir(exist_ok=True)
    (tmp_path / spoiled).write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    environment = {k: v for k, v in driver.environment().items() if k != "PYTHONPATH"}
    assert len((await NVMLSource(environment=environment).read()).devices) == 4


def environment_of(home: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "__file__", str(home / "gpuspawner" / "inventory.py"))
    return module._child_environment({"PYTHONPATH": path})["PYTHONPATH"]


def test_the_probe_finds_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "checkout"
    assert environment_of(home, "", monkeypatch) == str(home)
    assert environment_of(home, "/a::/b", monkeypatch) == f"/a:/b:{home}"
    monkeypatch.chdir(tmp_path)
    assert environment_of(home, "lib", monkeypatch) == f"{tmp_path}/lib:{home}"
    # Before the standard library an installed package's folder would do harm.
    assert environment_of(tmp_path / "site-packages", "", monkeypatch) == ""


def test_importing_it_starts_nothing() -> None:
    text = (
        "import sys, gpuspawner.inventory\n"
        "print('pynvml' in sys.modules, 'jupyterhub' in sys.modules)"
    )
    home = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False False\n"
