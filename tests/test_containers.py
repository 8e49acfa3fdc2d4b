"""What a server's container is, read from the engine: contained, labelled, with its cards only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_hub import containers, gpu_hub, inside
from ground import image
from ground.engine import Engine
from ground.hub import Hub
from orders import CONFIG, order

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}
PROFILES = """
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "Two GPUs", "slug": "two-gpus", "gpu": {"count": 2}},
    {"display_name": "CPU only", "slug": "cpu"},
]
c.GPUSpawner.max_gpus_per_user = 2
c.GPUSpawner.allowed_images = {"one": "gpuspawner-tiny:latest", "two": "gpuspawner-tiny:all"}
c.Spawner.group_overrides = {
    "01-big": {"groups": ["big"], "spawner_override": {"mem_limit": "256M"}},
}
"""
HOOK_FILE = "/.gpuspawner/python/sitecustomize.py"


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image_all: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("containers")
    with gpu_hub(folder, engine, tiny_image_all, PROFILES + CONFIG) as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    for row in containers(engine):
        shared_hub.stop_server(row["Labels"]["gpuspawner.user"], row["Labels"]["gpuspawner.server"])
    shared_hub.wait(lambda: not containers(engine), "no container left")


def inspection(hub: Hub, engine: Engine, user: str, options: dict[str, str] = ONE) -> Any:
    """Start a user's server and inspect its container."""
    answer = hub.start_server(user, options, check=False)
    assert answer.status_code == 201, f"{answer.text}\n{hub.log[-3000:]}"
    hub.wait_ready(user)
    row = next(r for r in containers(engine) if r["Labels"]["gpuspawner.user"] == user)
    return engine.client.inspect_container(row["Id"])


def env_of(found: Any) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in found["Config"]["Env"])


def warnings_of(hub: Hub, word: str) -> list[str]:
    return [line for line in hub.log.splitlines() if word in line and "[W " in line]


def test_a_gpu_server(hub: Hub, engine: Engine) -> None:
    user = order(hub, "plain")
    found = inspection(hub, engine, user)
    host, labels, env = found["HostConfig"], found["Config"]["Labels"], env_of(found)
    uuid = labels["gpuspawner.devices"]
    assert uuid in engine.uuids
    assert labels["gpuspawner.hub"] == (hub.folder / "gpuspawner_hub_id").read_text().strip()
    assert len(labels["gpuspawner.lease"]) == 32
    assert labels["gpuspawner.image"] == found["Image"]
    assert {key: labels[f"gpuspawner.{key}"] for key in ("user", "server", "profile", "share")} == {
        "user": user, "server": "", "profile": "one-gpu", "share": "1"
    }  # fmt: skip
    assert json.loads(labels["gpuspawner.options"]) == ONE
    assert "gpuspawner.role" not in labels

    assert found["Config"]["User"] == "1000:100"
    assert (host["CapDrop"], host["CapAdd"] or []) == (["ALL"], [])
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["AutoRemove"] is False
    assert host["RestartPolicy"]["Name"] == "no"
    assert host["ShmSize"] == 8 * 2**30
    assert not host["Privileged"]
    [request] = host["DeviceRequests"]
    if engine.kind == "cdi":
        assert (request["Driver"], request["DeviceIDs"]) == ("cdi", [f"nvidia.com/gpu={uuid}"])
        assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert host["Runtime"] == "runc"
    else:
        assert (request["Driver"], request["DeviceIDs"]) == ("nvidia", [uuid])
        assert request["Count"] == 0
        assert env["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert env["GPUSPAWNER_DEVICES"] == uuid
    assert env["GPUSPAWNER_MEMORY_FRACTION"] == "1"
    wanted = {"NB_UID": "1000", "NB_GID": "100", "NB_USER": "jovyan", "NB_UMASK": "022"}
    assert {key: env[key] for key in wanted} == wanted
    assert env["HOME"] == "/home/jovyan"
    # Nothing tells a framework of a limit where there is none.
    assert not [name for name in env if name.startswith(("XLA_", "CUPY_", "TF_", "PYTORCH_"))]


def test_a_cpu_server(hub: Hub, engine: Engine) -> None:
    found = inspection(hub, engine, order(hub, "cpu"), CPU)
    env = env_of(found)
    assert found["HostConfig"]["DeviceRequests"] in (None, [])
    assert found["HostConfig"]["Runtime"] == "runc"
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPUSPAWNER_DEVICES"]) == ("void", "")
    assert found["Config"]["Labels"]["gpuspawner.devices"] == ""
    assert "GPUSPAWNER_MEMORY_FRACTION" not in env


def test_two_cards(hub: Hub, engine: Engine) -> None:
    user = order(hub, "two")
    found = inspection(hub, engine, user, {"profile": "two-gpus"})
    uuids = found["Config"]["Labels"]["gpuspawner.devices"].split(",")
    assert len(set(uuids)) == 2
    [request] = found["HostConfig"]["DeviceRequests"]
    assert [name.rpartition("=")[2] for name in request["DeviceIDs"]] == uuids
    if engine.kind == "cdi":
        numbers = {f"nvidia{engine.uuids.index(uuid)}" for uuid in uuids}
        assert {n for n in inside(hub, user)["dev"] if n.startswith("nvidia")} == numbers


REQUEST = "__import__('docker').types.DeviceRequest(count=-1, capabilities=[['gpu']])"
PLAIN = "{'Driver': 'nvidia', 'Count': -1, 'Capabilities': [['gpu']]}"


@pytest.mark.parametrize("options", [ONE, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize(
    "requests",
    [f"[{REQUEST}]", f"({REQUEST},)", f"[{PLAIN}]", f"({PLAIN},)"],
    ids=["list", "tuple", "dicts", "tuple-of-dicts"],
)
def test_the_admins_own_gpu_requests_from_a_callable_are_dropped_once(
    hub: Hub, engine: Engine, requests: str, options: dict[str, str]
) -> None:
    user = order(
        hub,
        f"own{abs(hash(requests + str(options))) % 10**9}",
        python={
            "extra_host_config": "lambda spawner: "
            f"{{'device_requests': {requests}, 'pids_limit': 77}}"
        },
    )
    found = inspection(hub, engine, user, options)
    assert len(found["HostConfig"]["DeviceRequests"] or []) == (1 if options == ONE else 0)
    assert found["HostConfig"]["PidsLimit"] == 77
    # Told once, however many servers it happens to.
    told = [line.split(": ", 1)[1] for line in warnings_of(hub, "dropped a device request")]
    assert told
    assert len(told) == len(set(told))
    if engine.kind == "cdi":
        seen = [name for name in inside(hub, user)["dev"] if name.startswith("nvidia")]
        assert len(seen) == (1 if options == ONE else 0)


@pytest.mark.parametrize(
    "value",
    [
        "{'pids_limit': 77}",
        "lambda spawner: {'pids_limit': 77}",
        "lambda spawner: __import__('asyncio').sleep(0.01, {'pids_limit': 77})",
    ],
    ids=["dict", "callable", "async"],
)
def test_extra_host_config_is_kept(hub: Hub, engine: Engine, value: str) -> None:
    user = order(hub, f"host{abs(hash(value)) % 10**9}", python={"extra_host_config": value})
    for _ in range(2):  # the setting is still there for the next start
        assert inspection(hub, engine, user)["HostConfig"]["PidsLimit"] == 77
        hub.stop_server(user)
        hub.wait_stopped(user)


@pytest.mark.parametrize(
    "manner", ["{}", "lambda spawner: {}", "lambda s: __import__('asyncio').sleep(0, {})"]
)
def test_extra_create_kwargs_cannot_widen(hub: Hub, engine: Engine, manner: str) -> None:
    extra = {
        "user": "root",
        "environment": {"NVIDIA_VISIBLE_DEVICES": "all", "GPUSPAWNER_DEVICES": "all", "MINE": "1"},
        "labels": {"gpuspawner.devices": "none", "mine": "1"},
        "hostname": "lab",
        "runtime": "nvidia",
    }
    user = order(
        hub,
        f"create{abs(hash(manner)) % 10**9}",
        python={"extra_create_kwargs": manner.replace("{}", repr(extra))},
    )
    found = inspection(hub, engine, user, CPU)
    env = env_of(found)
    assert found["Config"]["User"] == "1000:100"
    assert found["Config"]["Hostname"] == "lab"
    assert found["HostConfig"]["Runtime"] == "runc"
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPUSPAWNER_DEVICES"], env["MINE"]) == (
        "void",
        "",
        "1",
    )
    assert found["Config"]["Labels"]["gpuspawner.devices"] == ""
    assert found["Config"]["Labels"]["mine"] == "1"


def test_a_memory_fraction_reaches_python_inside(hub: Hub, engine: Engine) -> None:
    own = {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    user = order(hub, "half", memory_fraction=0.5, extra_create_kwargs={"environment": own})
    found = inspection(hub, engine, user)
    env = env_of(found)
    assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"  # the admin's own value wins
    assert env["GPUSPAWNER_MEMORY_FRACTION"] == "0.5"
    assert env["CUPY_GPU_MEMORY_LIMIT"] == "50%"
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    assert env["PYTHONPATH"] == HOOK_FILE.rpartition("/")[0]
    # The hook hands over to the image's own sitecustomize, so its finder is what is left to see.
    code = (
        "import os, sys; finders = [type(f).__name__ for f in sys.meta_path]; "
        f"path = {HOOK_FILE!r}; folder = os.path.dirname(path); "
        "print('_TorchFinder' in finders, os.access(path, os.R_OK), os.access(path, os.W_OK), "
        "os.access(folder, os.W_OK), os.getuid())"
    )
    asked = engine.client.exec_create(found["Id"], ["python3", "-c", code])
    said = engine.client.exec_start(asked["Id"]).decode()
    assert said.split() == ["True", "True", "False", "False", "1000"]


def test_groups_networks_and_limits(hub: Hub, engine: Engine) -> None:
    user = order(hub, "grouped", network_name="lab-net")
    network = engine.client.create_network("lab-net")
    try:
        hub.api("POST", "groups/big", check=False)
        hub.api("POST", "groups/big/users", json={"users": [user]})
        found = inspection(hub, engine, user)
        assert found["HostConfig"]["Memory"] == 256 * 2**20
        assert found["HostConfig"]["ShmSize"] == 128 * 2**20
        assert set(found["NetworkSettings"]["Networks"]) == {"lab-net"}
        assert inside(hub, user)["uid"] == 1000
        hub.stop_server(user)
        hub.wait_stopped(user)
        hub.wait(lambda: not containers(engine), "no container left")
    finally:
        engine.client.remove_network(network["Id"])


def test_images_times_profiles(hub: Hub, engine: Engine) -> None:
    user = order(hub, "chooser")
    found = inspection(hub, engine, user, {"profile": "one-gpu", "image": "one"})
    assert found["Config"]["Image"] == image.TINY
    assert json.loads(found["Config"]["Labels"]["gpuspawner.options"])["image"] == "one"


def test_named_servers_count_against_the_users_limit(hub: Hub, engine: Engine) -> None:
    user = order(hub, "greedy")
    for name in ("", "b"):
        hub.start_server(user, ONE, name)
        hub.wait_ready(user, name)
    answer = hub.start_server(user, ONE, "c", check=False)
    assert answer.status_code == 403
    assert answer.json()["message"].startswith(
        "You may use 2 GPUs at a time, and 2 of your servers"
    )
    # The form does not offer what would be refused.
    form = hub.login(user).get_form(name="c").text
    assert "You may use 2 GPUs at a time, and 2 of your servers have 2." in form
    assert hub.start_server(user, CPU, "c").status_code == 201
    assert 'reason="gpu-quota"' in hub.api("GET", "../metrics").text


def test_a_start_as_root_gets_three_capabilities_only(hub: Hub, engine: Engine) -> None:
    user = order(hub, "dropper", drop_from_root=True)
    found = inspection(hub, engine, user)
    assert found["Config"]["User"] == "0:0"
    assert found["HostConfig"]["CapDrop"] == ["ALL"]
    added = [name.removeprefix("CAP_") for name in found["HostConfig"]["CapAdd"]]
    assert added == ["CHOWN", "SETGID", "SETUID"]
    assert env_of(found)["NB_UID"] == "1000"


# -- an engine whose default runtime is NVIDIA's -------------------------------------------------


@pytest.fixture(scope="module")
def nvidia_by_default(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("nv"), "cdi", default_runtime="nvidia") as started:
        image.load_tiny(started.client)
        # Loading made containers of its own, to put the variable into the image.
        for path in (started.folder / "hook" / "records").glob("runtime.*"):
            path.unlink()
        yield started


@pytest.mark.parametrize("engine", ["cdi"], indirect=True)
def test_nvidias_runtime_never_sees_a_server(
    nvidia_by_default: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = nvidia_by_default
    with gpu_hub(tmp_path_factory.mktemp("nvhub"), engine, image.TINY_ALL) as hub:
        hub.add_users("cpu", "cdi")
        for user, options in (("cpu", CPU), ("cdi", ONE)):
            found = inspection(hub, engine, user, options)
            assert found["HostConfig"]["Runtime"] == "runc"
            assert inside(hub, user)["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert engine.runtime_calls() == []
        # The stand-in does see what is started without a word.
        plain = engine.client.create_container(image.TINY_ALL, ["true"])
        engine.client.start(plain["Id"])
        assert len(engine.runtime_calls()) == 1
