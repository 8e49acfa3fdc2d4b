"""What somebody else's container asks for, read from inspections as engines write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.rows import cards, sliced
from gpuspawner.asks import Asks, EngineFacts, image_repository, parse_asks
from gpuspawner.devices import Inventory

RUNC = EngineFacts()
NVIDIA_BY_DEFAULT = EngineFacts(default_runtime="nvidia")
FOUR = cards(4)
ALL_FOUR = {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}


def container(
    *,
    env: list[str] | None = None,
    image: str = "python:3.12",
    labels: dict[str, str] | None = None,
    **host: Any,
) -> dict[str, Any]:
    """As ``docker inspect`` prints a container that asks for nothing."""
    return {
        "Id": "f" * 64,
        "State": {"Status": "running", "Error": "", "FinishedAt": "0001-01-01T00:00:00Z"},
        "Image": "sha256:" + "3" * 64,
        "Config": {
            "Image": image,
            "Env": ["PATH=/usr/bin", *(env or [])],
            "Labels": labels or {},
        },
        "HostConfig": {
            "Binds": None,
            "Privileged": False,
            "Runtime": "runc",
            "Devices": [],
            "DeviceCgroupRules": None,
            "DeviceRequests": None,
            **host,
        },
        "Mounts": [],
    }


def request(
    *ids: str,
    count: int = 0,
    driver: str = "",
    capabilities: list[list[str]] | None = None,
) -> list[dict[str, Any]]:
    wanted = [["gpu"]] if capabilities is None else capabilities
    return [
        {
            "Driver": driver,
            "Count": count,
            "DeviceIDs": list(ids) or None,
            "Capabilities": wanted,
            "Options": {},
        }
    ]


def node(path: str) -> list[dict[str, str]]:
    return [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}]


def held(
    inspection: dict[str, Any], facts: EngineFacts = RUNC, inventory: Inventory = FOUR
) -> set[str]:
    return set(parse_asks(inspection, facts).resolve(inventory)[0])


@pytest.mark.parametrize(
    ("host", "devices"),
    [
        # docker run --gpus …
        ({"DeviceRequests": request(count=-1)}, ALL_FOUR),
        ({"DeviceRequests": request("all")}, ALL_FOUR),
        ({"DeviceRequests": request(count=1)}, {"GPU-0"}),
        ({"DeviceRequests": request(count=2)}, {"GPU-0", "GPU-1"}),
        ({"DeviceRequests": request(count=9)}, ALL_FOUR),
        ({"DeviceRequests": request("GPU-2")}, {"GPU-2"}),
        ({"DeviceRequests": request("gpu-2")}, {"GPU-2"}),
        ({"DeviceRequests": request("2", "3")}, {"GPU-2", "GPU-3"}),
        ({"DeviceRequests": request("0", driver="nvidia", capabilities=[])}, {"GPU-0"}),
        ({"DeviceRequests": request("00000000:0B:00.0")}, {"GPU-1"}),
        ({"DeviceRequests": request("0000:0b:00.0")}, {"GPU-1"}),
        ({"DeviceRequests": request("0", capabilities=[["gpu", "compute"]])}, {"GPU-0"}),
        ({"DeviceRequests": request("0") + request("3")}, {"GPU-0", "GPU-3"}),
        ({"DeviceRequests": request("none")}, set()),
        ({"DeviceRequests": request("GPU-of-yesterday")}, set()),
        ({"DeviceRequests": request("7")}, set()),
        ({"DeviceRequests": request("0", driver="amd")}, set()),
        ({"DeviceRequests": request("0", capabilities=[["tpu"]])}, set()),
        # CDI
        ({"DeviceRequests": request("nvidia.com/gpu=GPU-1", driver="cdi")}, {"GPU-1"}),
        ({"DeviceRequests": request("nvidia.com/gpu=1", driver="cdi")}, {"GPU-1"}),
        ({"DeviceRequests": request("nvidia.com/gpu=all", driver="cdi")}, ALL_FOUR),
        ({"DeviceRequests": request("nvidia.com/gpu=gpu1", driver="cdi")}, ALL_FOUR),
        ({"DeviceRequests": request("acme.example/gpu=x", driver="cdi")}, ALL_FOUR),
        ({"DeviceRequests": request("acme.example/nic=x", driver="cdi")}, set()),
        ({"DeviceRequests": request("amd.com/gpu=0", driver="cdi")}, set()),
        ({"Devices": node("nvidia.com/gpu=GPU-1")}, {"GPU-1"}),
        # --device: minors run the other way round than indices here
        ({"Devices": node("/dev/nvidia0")}, {"GPU-3"}),
        ({"Devices": node("/dev/nvidia3")}, {"GPU-0"}),
        ({"Devices": node("/dev/nvidia9")}, set()),
        ({"Devices": node("/dev/nvidiactl")}, set()),
        ({"Devices": node("/dev/nvidia-uvm")}, set()),
        ({"Devices": node("/dev/fuse")}, set()),
        # mounts
        (
            {"Binds": ["/dev/null:/var/run/nvidia-container-devices/GPU-1:ro"]},
            {"GPU-1"},
        ),
        ({"Binds": ["/dev/null:/var/run/nvidia-container-devices/all"]}, ALL_FOUR),
        (
            {
                "Mounts": [
                    {
                        "Type": "bind",
                        "Source": "/dev/null",
                        "Target": "/var/run/nvidia-container-devices/2",
                    }
                ]
            },
            {"GPU-2"},
        ),
        (
            {"Binds": ["/dev/null:/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0"]},
            {"GPU-0"},
        ),
        # nothing
        ({}, set()),
        ({"Binds": ["/home/ada:/home/ada"]}, set()),
    ],
)
def test_holds(host: dict[str, Any], devices: set[str]) -> None:
    assert held(container(**host)) == devices


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("all", ALL_FOUR),
        ("ALL", ALL_FOUR),
        ("GPU-1", {"GPU-1"}),
        ("GPU-1,2", {"GPU-1", "GPU-2"}),
        (" 0 , 3 ", {"GPU-0", "GPU-3"}),
        ("nvidia.com/gpu=1", {"GPU-1"}),
        ("nvidia.com/gpu=all", ALL_FOUR),
        ("void", set()),
        ("none", set()),
        ("", set()),
        ("GPU-of-yesterday", set()),
    ],
)
def test_the_variable_counts_only_under_nvidias_runtime(value: str, devices: set[str]) -> None:
    env = [f"NVIDIA_VISIBLE_DEVICES={value}"]
    assert held(container(env=env, Runtime="nvidia")) == devices
    assert held(container(env=env, Runtime=""), NVIDIA_BY_DEFAULT) == devices
    assert held(container(env=env)) == set()
    assert held(container(env=env, Runtime=""), RUNC) == set()
    other_name = EngineFacts(frozenset({"gpu-rt"}))
    assert held(container(env=env, Runtime="gpu-rt"), other_name) == devices


def test_images_from_before_the_variable_get_all_cards_from_nvidias_runtime() -> None:
    old = container(env=["CUDA_VERSION=8.0"], Runtime="nvidia")
    assert held(old) == ALL_FOUR
    new = container(env=["CUDA_VERSION=12.8", "NVIDIA_REQUIRE_CUDA=cuda>=12.8"], Runtime="nvidia")
    assert held(new) == set()


def test_mig_slices_by_uuid_and_by_pair() -> None:
    inventory = sliced()
    assert held(container(DeviceRequests=request("MIG-a")), inventory=inventory) == {"MIG-a"}
    assert held(container(DeviceRequests=request("0:3")), inventory=inventory) == {"MIG-b"}
    assert held(container(DeviceRequests=request("0")), inventory=inventory) == {"GPU-0"}
    by_cdi = request("nvidia.com/gpu=0:0", driver="cdi")
    assert held(container(DeviceRequests=by_cdi), inventory=inventory) == {"MIG-a"}


@pytest.mark.parametrize(
    "inspection",
    [
        container(DeviceRequests=request(count=-1), labels={"gpuspawner.role": "observer"}),
        container(DeviceRequests=request(count=-1), image="nvcr.io/nvidia/k8s/dcgm-exporter:3.3"),
        container(DeviceRequests=request(count=-1), image="nvidia/dcgm-exporter"),
        container(DeviceRequests=request(count=-1), image="reg:5000/lab/exporter:1@sha256:00"),
        container(Privileged=True, image="gcr.io/cadvisor/cadvisor:v0.49"),
        container(DeviceRequests=request(count=-1, capabilities=[["gpu", "utility"]])),
        container(
            env=["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"],
            Runtime="nvidia",
        ),
        {**container(DeviceRequests=request(count=-1)), "Id": "own"},
    ],
)
def test_observers_block_nothing(inspection: dict[str, Any]) -> None:
    asks = parse_asks(inspection, RUNC, ["reg:5000/lab/exporter"], ["own"])
    assert asks.manner == "observes"
    assert asks.resolve(FOUR) == (frozenset(), ())


@pytest.mark.parametrize(
    "inspection",
    [
        container(
            DeviceRequests=request(count=-1, capabilities=[["gpu", "utility", "compute"]]),
        ),
        container(
            DeviceRequests=request("0", capabilities=[["gpu", "utility"]])
            + request("0", capabilities=[["gpu"]]),
        ),
        container(
            DeviceRequests=request("0", capabilities=[["gpu", "utility"]]),
            Devices=node("/dev/nvidia3"),
        ),
        container(
            DeviceRequests=request("0", capabilities=[["gpu", "utility"]]),
            Binds=["/dev/null:/var/run/nvidia-container-devices/0"],
        ),
        container(
            DeviceRequests=request("0", capabilities=[["gpu", "utility"]])
            + request("nvidia.com/gpu=0", driver="cdi"),
        ),
        container(
            env=["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility,compute"],
            Runtime="nvidia",
        ),
        container(DeviceRequests=request("0"), image="evil/not-dcgm-exporter"),
        container(DeviceRequests=request("0"), Privileged=True),
    ],
)
def test_work_is_no_observer(inspection: dict[str, Any]) -> None:
    assert "GPU-0" in held(inspection)


@pytest.mark.parametrize(
    "host",
    [
        {"Privileged": True},
        {"Binds": ["/dev:/dev"]},
        {"Binds": ["/:/host"]},
        {"Binds": ["/dev/:/host/dev:ro"]},
        {"Mounts": [{"Type": "bind", "Source": "/dev", "Target": "/dev"}]},
        {"Devices": node("/dev")},
        {"DeviceCgroupRules": ["c 195:* rwm"]},
    ],
)
def test_may_use_blocks_by_its_processes_only(host: dict[str, Any]) -> None:
    asks = parse_asks(container(**host), RUNC)
    assert asks.manner == "may-use"
    assert asks.resolve(FOUR) == (frozenset(), ())


@pytest.mark.parametrize(
    "host", [{"Binds": ["/home:/dev"]}, {"Binds": ["/devices:/x"]}, {"Binds": ["data:/dev"]}]
)
def test_not_every_mount_is_the_hosts_dev(host: dict[str, Any]) -> None:
    assert parse_asks(container(**host), RUNC).manner == "nothing"


def test_an_unknown_id_blocks_everything_while_a_card_has_no_name() -> None:
    partial = cards(2, complete=False)
    asks = parse_asks(container(DeviceRequests=request("GPU-x")), RUNC)
    assert asks.resolve(partial) == (frozenset({"GPU-0", "GPU-1"}), ("GPU-x",))
    assert asks.resolve(cards(2)) == (frozenset(), ("GPU-x",))
    by_node = parse_asks(container(Devices=node("/dev/nvidia9")), RUNC)
    assert by_node.resolve(partial)[0] == {"GPU-0", "GPU-1"}


def test_an_abbreviated_uuid_names_its_card() -> None:
    inventory = cards(2)
    assert held(container(DeviceRequests=request("GPU-")), inventory=inventory) == set()
    asks = Asks(manner="holds", ids=frozenset({"MIG-"}))
    assert asks.resolve(sliced())[0] == frozenset()


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("a", "a"),
        ("a:1", "a"),
        ("reg:5000/a/b:1", "reg:5000/a/b"),
        ("reg:5000/a/b", "reg:5000/a/b"),
        ("reg/a@sha256:12", "reg/a"),
        ("reg:5000/a:t@sha256:12", "reg:5000/a"),
        ("", ""),
    ],
)
def test_image_repository(image: str, repository: str) -> None:
    assert image_repository(image) == repository


def test_the_admin_is_told_where_it_was_found() -> None:
    asks = parse_asks(container(DeviceRequests=request("0"), Devices=node("/dev/nvidia1")), RUNC)
    assert asks.why == "device request, /dev/nvidia1"


WORDS = st.sampled_from(
    [
        *("", "all", "0", "-1", "GPU-0", "MIG-a", "0:0", "::", "none", "=", "/", ":", "\u00b2"),
        *("nvidia.com/gpu=0", "nvidia.com/gpu=", "/dev/nvidia0", "/dev"),
        *("gpu", "utility", "cdi", "nvidia", "\u0663"),
    ]
) | st.text(max_size=6)
MAYBE = st.none() | st.lists(WORDS, max_size=2)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "Driver": st.none() | WORDS,
        "Count": st.none() | st.integers(-2, 5),
        "DeviceIDs": MAYBE,
        "Capabilities": st.none() | st.lists(st.none() | st.lists(WORDS, max_size=2), max_size=2),
        "Options": st.none(),
    },
)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = st.fixed_dictionaries({}, optional={k: st.none() | v for k, v in fields.items()})
    return st.none() | st.lists(st.none() | one, max_size=2)


INSPECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "Id": st.none() | WORDS,
        "Config": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "Env": st.none()
                | st.lists(
                    WORDS
                    | WORDS.map("NVIDIA_VISIBLE_DEVICES={}".format)
                    | WORDS.map("NVIDIA_DRIVER_CAPABILITIES={}".format),
                    max_size=3,
                ),
                "Labels": st.none() | st.dictionaries(WORDS, st.none() | WORDS, max_size=2),
                "Image": st.none() | WORDS,
            },
        ),
        "HostConfig": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "DeviceRequests": st.none() | st.lists(st.none() | REQUESTS, max_size=2),
                "Devices": objects(PathOnHost=WORDS),
                "Binds": MAYBE,
                "Mounts": objects(Source=WORDS, Target=WORDS),
                "Privileged": st.none() | st.booleans(),
                "DeviceCgroupRules": MAYBE,
                "Runtime": st.none() | st.sampled_from(["", "runc", "nvidia"]),
            },
        ),
        "Mounts": objects(Source=WORDS, Destination=WORDS),
    },
)


@given(INSPECTIONS, st.sampled_from([FOUR, sliced(), cards(2, complete=False), Inventory()]))
def test_no_inspection_is_too_odd_to_read(inspection: dict[str, Any], inventory: Inventory) -> None:
    asks = parse_asks(inspection, RUNC)
    devices, unresolved = asks.resolve(inventory)
    assert devices <= {*inventory.by_uuid, *inventory.slice_by_uuid}
    assert asks.manner == "holds" or (not devices and not unresolved)
    # The same facts, the same answer: it is cached for the container's life.
    assert parse_asks(inspection, RUNC) == asks
