"""The last word on a container: what it may do and which cards it sees."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from docker.types import DeviceRequest, HostConfig, Mount
from docker.utils import format_environment
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.collisions import collisions
from gpuspawner.containment import ContainmentError, Policy, contain, grant
from gpuspawner.identity import resolve_identity

USER = resolve_identity(1000, 100)
CLOSED = Policy(USER)
UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"

GPU_REQUESTS = [
    DeviceRequest(count=-1, capabilities=[["gpu"]]),
    DeviceRequest(driver="nvidia", device_ids=["0"]),
    DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"]),
    DeviceRequest(driver="cdi", device_ids=["management.nvidia.com/gpu=all"]),
    DeviceRequest(driver="cdi", device_ids=["lab.example/gpu=0"]),
    {"Driver": "", "Count": 1, "Capabilities": [["compute", "GPU"]]},
    {"driver": "nvidia", "count": 1},
    {"driver": "NVIDIA"},
    {"device_ids": [OTHER]},
    {"capabilities": [["gpu", "utility"]], "count": -1},
    {"Capabilities": ["gpu"]},
]
OTHER_REQUESTS = [
    DeviceRequest(driver="cdi", device_ids=["vendor.com/nic=eth1"]),
    DeviceRequest(driver="cdi", device_ids=["amd.com/gpu=0"]),
    {"driver": "fpga", "count": 1, "capabilities": [["fpga"]]},
]


def host_config(**arguments: Any) -> dict[str, Any]:
    return dict(HostConfig(version="1.41", **arguments))


def closed(host: dict[str, Any] | None = None, policy: Policy = CLOSED, **kwargs: Any) -> Any:
    final, _ = contain({"image": "i", "host_config": host or {}, **kwargs}, policy)
    return final


def refused(host: dict[str, Any], policy: Policy = CLOSED) -> str:
    with pytest.raises(ContainmentError) as error:
        contain({"image": "i", "host_config": host}, policy)
    return str(error.value)


def test_closed_by_default() -> None:
    final = closed(host_config(auto_remove=True, mem_limit="4g"))
    host = final["host_config"]
    assert final["user"] == "1000:100"
    assert final["environment"] == USER.env
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == []
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["AutoRemove"] is False
    assert host["RestartPolicy"] == {"Name": "no"}
    assert not host.get("Privileged")


def test_the_input_is_not_changed() -> None:
    kwargs = {
        "image": "i",
        "environment": {"NVIDIA_VISIBLE_DEVICES": "all", "A": "1"},
        "volumes": ["/home/jovyan"],
        "host_config": host_config(
            devices=["/dev/nvidia0"],
            device_requests=GPU_REQUESTS[:1],
            restart_policy={"Name": "always"},
        ),
    }
    before = copy.deepcopy(kwargs)
    final, notes = contain(kwargs, CLOSED)
    grant(final, [UUID], "nvidia")
    assert kwargs == before
    assert len(notes) == 4


# -- GPUs: ours alone -------------------------------------------------------------------------


@pytest.mark.parametrize("request_", GPU_REQUESTS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_gpu_requests_are_dropped_others_kept(request_: Any, kind: Any) -> None:
    kept = {"Driver": "cdi", "DeviceIDs": ["vendor.com/nic=eth1"]}
    final, notes = contain({"host_config": {"DeviceRequests": kind([request_, kept])}}, CLOSED)
    assert final["host_config"]["DeviceRequests"] == [kept]
    assert len(notes) == 1
    assert "profile" in notes[0]


@pytest.mark.parametrize("request_", OTHER_REQUESTS)
def test_requests_for_other_devices_are_kept_in_the_api_form(request_: Any) -> None:
    final, notes = contain({"host_config": {"DeviceRequests": (request_,)}}, CLOSED)
    (kept,) = final["host_config"]["DeviceRequests"]
    assert kept == {k: v for k, v in DeviceRequest(**request_).items() if k in kept}
    assert set(kept) <= set(DeviceRequest())
    assert notes == []


def test_a_mixed_cdi_request_is_parted() -> None:
    mixed = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=0", "vendor.com/nic=eth1"]}
    host = closed({"DeviceRequests": [mixed]})["host_config"]
    assert host["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["vendor.com/nic=eth1"]}]


@pytest.mark.parametrize("bad", ["all", 5, {"Driver": "nvidia"}, ["gpu"]])
def test_requests_of_the_wrong_kind(bad: Any) -> None:
    refused({"DeviceRequests": bad})


@pytest.mark.parametrize(
    "host",
    [
        host_config(devices=["/dev/nvidia0"]),
        host_config(devices=["//dev/./x/../nvidia0:/dev/x:rwm"]),
        host_config(devices=["/dev/nvidia-caps/nvidia-cap1"]),
        host_config(devices=["nvidia.com/gpu=all"]),
        host_config(binds={"/dev/nvidia0": {"bind": "/dev/nvidia0", "mode": "rw"}}),
        host_config(binds=["/dev/null:/var/run/nvidia-container-devices/all"]),
        host_config(mounts=[Mount("/dev/nvidia0", "/dev/nvidia0", type="bind")]),
        host_config(mounts=[Mount("/run/nvidia-container-devices/all", "/dev/null", type="bind")]),
        host_config(device_cgroup_rules=["c 195:* rwm"]),
        {"Runtime": "nvidia"},
    ],
)
def test_other_ways_to_a_gpu_are_dropped(host: dict[str, Any]) -> None:
    allowing = Policy(USER, allow_devices=("/dev/nvidia0", "/dev/nvidia-caps", "c 195:* rwm"))
    for policy in (CLOSED, allowing):
        final, notes = contain({"host_config": host}, policy)
        assert len(notes) == 1
        text = json.dumps(final)
        assert "/dev/nvidia" not in text
        assert "195" not in text
        assert "nvidia-container-devices" not in text
        assert "Runtime" not in final["host_config"]


def test_the_mount_point_of_a_dropped_mount_goes_too() -> None:
    final = closed(
        host_config(binds=["/dev/nvidia0:/dev/nvidia0"]), volumes=["/home", "/dev/nvidia0"]
    )
    assert final["volumes"] == ["/home"]


@pytest.mark.parametrize("form", [dict, format_environment])
def test_variables_that_name_cards_are_dropped(form: Any) -> None:
    env = form(
        {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "CUDA_VISIBLE_DEVICES": "3",
            "DOCKER_RESOURCE_GPU": OTHER,
            "DOCKER_RESOURCE_NVIDIA-GPU": OTHER,
            "NVIDIA_DRIVER_CAPABILITIES": "all",
            "A": "1=2",
            "GONE": None,
        }
    )
    final, notes = contain({"environment": env}, CLOSED)
    assert final["environment"] == {
        "A": "1=2",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "GONE": None,
        **USER.env,
    }
    assert len(notes) == 4


# -- what opens a container ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "named"),
    [
        (host_config(privileged=True), "privileged=True"),
        (host_config(pid_mode="host"), "pid_mode='host'"),
        (host_config(ipc_mode="host"), "ipc_mode='host'"),
        ({"IpcMode": "container:abc"}, "ipc_mode"),
        ({"MaskedPaths": []}, "MaskedPaths"),
        ({"ReadonlyPaths": []}, "ReadonlyPaths"),
        ({"VolumesFrom": ["other"]}, "volumes_from=['other']"),
        (host_config(userns_mode="host"), "userns_mode='host'"),
        (host_config(security_opt=["seccomp=unconfined"]), "seccomp=unconfined"),
        (host_config(security_opt=["seccomp:unconfined"]), "seccomp:unconfined"),
        (host_config(security_opt=["apparmor=unconfined"]), "apparmor=unconfined"),
        (host_config(security_opt=["systempaths=unconfined"]), "systempaths=unconfined"),
        (host_config(security_opt=["no-new-privileges:false"]), "no-new-privileges:false"),
        (host_config(binds=["/dev:/dev"]), "'/dev'"),
        (host_config(binds=["/:/host:ro"]), "'/'"),
        (host_config(devices=["/dev:/dev"]), "'/dev'"),
        (host_config(mounts=[Mount("/host", "//dev/", type="bind")]), "'/dev'"),
    ],
)
def test_opened_only_with_allow_privileged(host: dict[str, Any], named: str) -> None:
    for policy in (CLOSED, Policy(USER, allow_devices=("/dev", "/"))):
        text = refused(host, policy)
        assert named in text
        assert "GPUSpawner.allow_privileged = True" in text
    opened = closed(host, Policy(USER, allow_privileged=True))
    for key in host.keys() - {"SecurityOpt"}:
        assert opened["host_config"][key] == host[key]
    assert opened["host_config"]["SecurityOpt"][:1] == host.get(
        "SecurityOpt", ["no-new-privileges"]
    )
    assert opened["user"] == "1000:100"


def test_privileged_is_noted() -> None:
    host = host_config(privileged=True)
    _, notes = contain({"host_config": host}, Policy(USER, allow_privileged=True))
    assert "every device and GPU" in notes[0]


@pytest.mark.parametrize(
    ("host", "named", "allow"),
    [
        (host_config(devices=["/dev/fuse"]), "/dev/fuse", "/dev/fuse"),
        (host_config(devices=["/dev/snd/../fuse:/dev/x"]), "/dev/fuse", "/dev/fuse/"),
        (host_config(devices=["/dev/snd/timer"]), "/dev/snd/timer", "/dev/snd"),
        (host_config(binds=["/dev/kvm:/dev/kvm"]), "/dev/kvm", "/dev/kvm"),
        (host_config(device_cgroup_rules=["c 10:229 rwm"]), "c 10:229 rwm", "c 10:229 rwm"),
        (
            {
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": "v",
                        "Target": "/x",
                        "VolumeOptions": {"DriverConfig": {"Options": {"device": "/dev/sda"}}},
                    }
                ]
            },
            "/dev/sda",
            "/dev/sda",
        ),
    ],
)
def test_host_devices_only_by_name(host: dict[str, Any], named: str, allow: str) -> None:
    for policy in (CLOSED, Policy(USER, allow_devices=("/dev", "/dev/f", "/dev/k"))):
        text = refused(host, policy)
        assert named in text
        assert "GPUSpawner.allow_devices = " in text
    allowed = closed(host, Policy(USER, allow_devices=(allow,)))["host_config"]
    for key in ("Devices", "Binds", "Mounts", "DeviceCgroupRules"):
        assert allowed.get(key) == host.get(key)


@pytest.mark.parametrize("path", ["/dev/null:/etc/hide", "/data:/data", "volume:/v", "/devices:/d"])
def test_ordinary_mounts_pass(path: str) -> None:
    host = host_config(binds=[path], mounts=[Mount("/v", "volume")], tmpfs={"/dev/shm2": ""})
    final, notes = contain({"host_config": host}, CLOSED)
    assert final["host_config"]["Binds"] == [path]
    assert notes == []


def test_the_engines_socket_is_noted() -> None:
    host = host_config(binds=["/var/run/docker.sock:/var/run/docker.sock"])
    _, notes = contain({"host_config": host}, CLOSED)
    assert "socket" in notes[0]


def test_capabilities() -> None:
    host = host_config(cap_add=["cap_sys_ptrace", "NET_RAW"], cap_drop=["MKNOD"])
    text = refused(host)
    assert "GPUSpawner.allow_capabilities = ['NET_RAW', 'SYS_PTRACE']" in text
    text = refused(host, Policy(USER, allow_capabilities=("NET_RAW",)))
    assert "NET_RAW" not in text
    policy = Policy(USER, allow_capabilities=("sys_ptrace", "CAP_NET_RAW"))
    final = closed(host, policy)["host_config"]
    assert final["CapAdd"] == ["NET_RAW", "SYS_PTRACE"]
    assert final["CapDrop"] == ["ALL"]


def test_all_reasons_at_once() -> None:
    text = refused(host_config(privileged=True, cap_add=["ALL"], devices=["/dev/fuse"]))
    for setting in ("allow_privileged", "allow_capabilities", "allow_devices"):
        assert setting in text


def test_profiles_of_seccomp_and_apparmor_are_kept() -> None:
    options = ["seccomp={}", "apparmor=docker-jupyter", "label=disable"]
    final = closed(host_config(security_opt=options))["host_config"]
    assert final["SecurityOpt"] == [*options, "no-new-privileges"]


@pytest.mark.parametrize("option", ["no-new-privileges", "no-new-privileges:true"])
def test_no_new_privileges_is_not_doubled(option: str) -> None:
    assert closed(host_config(security_opt=[option]))["host_config"]["SecurityOpt"] == [option]


# -- who, how long, how much --------------------------------------------------------------------


def test_user_and_groups_are_ours() -> None:
    identity = resolve_identity(2000, 2000, [30, 20])
    final, notes = contain(
        {
            "user": "root",
            "environment": {"NB_UID": "0", "NB_GID": "2000"},
            "host_config": host_config(group_add=["video", 30]),
        },
        Policy(identity),
    )
    assert final["user"] == "2000:2000"
    assert final["environment"]["NB_UID"] == "2000"
    assert final["host_config"]["GroupAdd"] == ["video", "30", "20"]
    assert len(notes) == 2
    assert "NB_UID" in notes[0]
    assert "'root'" in notes[1]


@pytest.mark.parametrize("group", ["root", "0", 0, "00", " 0"])
def test_roots_group_is_refused(group: Any) -> None:
    host = {"GroupAdd": [group]}
    assert "GPUSpawner.allow_root" in refused(host)
    assert closed(host, Policy(USER, allow_root=True))["host_config"]["GroupAdd"] == [str(group)]


def test_a_start_as_root_adds_three_capabilities() -> None:
    identity = resolve_identity(1000, 100, drop_from_root=True)
    final = closed(policy=Policy(identity))
    assert final["user"] == "0:0"
    assert final["host_config"]["CapDrop"] == ["ALL"]
    assert final["host_config"]["CapAdd"] == ["CHOWN", "SETGID", "SETUID"]
    assert final["host_config"]["SecurityOpt"] == ["no-new-privileges"]


@pytest.mark.parametrize("name", ["always", "on-failure", "unless-stopped"])
def test_restart_policies_are_dropped(name: str) -> None:
    host = host_config(restart_policy={"Name": name})
    final, notes = contain({"host_config": host}, CLOSED)
    assert final["host_config"]["RestartPolicy"] == {"Name": "no"}
    assert name in notes[0]


@pytest.mark.parametrize(
    ("host", "size", "expected"),
    [
        ({}, 0, 8 * 2**30),
        (host_config(mem_limit="4g"), 0, 2 * 2**30),
        (host_config(mem_limit="4g"), 2**30, 2**30),
        (host_config(mem_limit="4g", shm_size="3g"), 2**30, 3 * 2**30),
        ({"Memory": 0}, 0, 8 * 2**30),
    ],
)
def test_shm_size(host: dict[str, Any], size: int, expected: int) -> None:
    policy = Policy(USER, shm_size_bytes=size)
    assert closed(host, policy)["host_config"]["ShmSize"] == expected


# -- grant --------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["cdi", "nvidia", "none"])
def test_a_cpu_server_sees_nothing(driver: str) -> None:
    final = grant(closed(), [], driver, image_env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert final["host_config"]["DeviceRequests"] == []
    assert final["host_config"]["Runtime"] == "runc"
    assert final["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert final["environment"]["GPUSPAWNER_DEVICES"] == ""


def test_cdi_cards() -> None:
    nic = {"Driver": "cdi", "DeviceIDs": ["vendor.com/nic=eth1"]}
    final = grant(closed({"DeviceRequests": [nic]}), [UUID, OTHER], "cdi")
    ids = [f"nvidia.com/gpu={UUID}", f"nvidia.com/gpu={OTHER}"]
    assert final["host_config"]["DeviceRequests"] == [nic, {"Driver": "cdi", "DeviceIDs": ids}]
    assert final["host_config"]["Runtime"] == "runc"
    assert final["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert final["environment"]["GPUSPAWNER_DEVICES"] == f"{UUID},{OTHER}"


def test_cards_by_the_hook() -> None:
    final = grant(closed(), [UUID], "nvidia")
    assert final["host_config"]["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": [UUID], "Capabilities": [["gpu"]]}
    ]
    assert "Runtime" not in final["host_config"]
    assert final["environment"]["NVIDIA_VISIBLE_DEVICES"] == UUID
    assert final["environment"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


@pytest.mark.parametrize("where", ["image", "admin"])
def test_driver_capabilities_of_image_or_admin_are_kept(where: str) -> None:
    theirs = {"NVIDIA_DRIVER_CAPABILITIES": "all"}
    kwargs = closed(environment=theirs if where == "admin" else {})
    final = grant(kwargs, [UUID], "nvidia", image_env=theirs if where == "image" else {})
    assert final["environment"].get("NVIDIA_DRIVER_CAPABILITIES", "all") == "all"


def test_an_images_swarm_variables_are_taken_away() -> None:
    final = grant(closed(), [UUID], "nvidia", image_env={"DOCKER_RESOURCE_GPU": OTHER})
    assert "DOCKER_RESOURCE_GPU" in format_environment(final["environment"])


def test_simulated_cards_inject_nothing() -> None:
    final = grant(closed(), [UUID], "none")
    assert final["host_config"]["DeviceRequests"] == []
    assert final["environment"]["GPUSPAWNER_DEVICES"] == UUID
    assert final["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_another_driver_is_an_error() -> None:
    with pytest.raises(ValueError, match="'cdi', 'nvidia' or 'none'"):
        grant(closed(), [UUID], "auto")


@given(
    requests=st.lists(st.sampled_from([*GPU_REQUESTS, *OTHER_REQUESTS]), max_size=4),
    env=st.dictionaries(
        st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU", "CUDA_VISIBLE_DEVICES"]),
        st.sampled_from(["all", "0", OTHER]),
    ),
    runtime=st.sampled_from([None, "nvidia", "runc", "nvidia-cdi"]),
    devices=st.sampled_from([(), (UUID,)]),
    driver=st.sampled_from(["cdi", "nvidia", "none"]),
)
def test_law_10_whatever_is_merged(
    requests: list[Any],
    env: dict[str, str],
    runtime: str | None,
    devices: tuple[str, ...],
    driver: str,
) -> None:
    host = {"DeviceRequests": requests, "Runtime": runtime}
    final = grant(closed(host, environment=env), devices, driver)
    ids = {i for r in final["host_config"]["DeviceRequests"] for i in r.get("DeviceIDs", ())}
    ids -= {"vendor.com/nic=eth1", "amd.com/gpu=0"}
    assert {i.removeprefix("nvidia.com/gpu=") for i in ids} <= set(devices)
    assert OTHER not in json.dumps(final)
    assert '"all"' not in json.dumps(final)
    hook = bool(devices) and driver == "nvidia"
    assert final["host_config"].get("Runtime") == (None if hook else "runc")
    assert final["environment"]["NVIDIA_VISIBLE_DEVICES"] == (UUID if hook else "void")


# -- at the hub's start ---------------------------------------------------------------------------


@pytest.mark.parametrize("request_", GPU_REQUESTS)
def test_gpu_requests_in_the_config_collide(request_: Any) -> None:
    for key in ("extra_host_config", "extra_create_kwargs"):
        value: Any = {"device_requests": (request_,)}
        if key == "extra_create_kwargs":
            value = {"host_config": value}
        ((place, text),) = collisions(key, value, CLOSED)
        assert place.endswith('["device_requests"]')
        assert "c.GPUSpawner.profile_list" in text


@pytest.mark.parametrize(
    ("key", "value", "place", "instead"),
    [
        ("extra_host_config", {"runtime": "nvidia"}, '["runtime"]', "device_driver"),
        ("extra_host_config", {"devices": ["/dev/nvidia0"]}, '["devices"]', "profile_list"),
        ("extra_host_config", {"binds": {"/dev/nvidia0": {}}}, '["binds"]', "profile_list"),
        ("extra_host_config", {"privileged": True}, "", "allow_privileged"),
        ("extra_host_config", {"devices": ["/dev/fuse"]}, "", "allow_devices"),
        ("extra_host_config", {"cap_add": ["SYS_ADMIN"]}, "", "allow_capabilities"),
        ("extra_create_kwargs", {"runtime": "nvidia"}, '["runtime"]', "device_driver"),
        ("extra_create_kwargs", {"user": "root"}, '["user"]', "drop_from_root"),
        (
            "extra_create_kwargs",
            {"environment": ["NVIDIA_VISIBLE_DEVICES=all"]},
            '["environment"]["NVIDIA_VISIBLE_DEVICES"]',
            "profile_list",
        ),
        (
            "environment",
            {"NVIDIA_VISIBLE_DEVICES": "all"},
            '["NVIDIA_VISIBLE_DEVICES"]',
            "profile_list",
        ),
        (
            "environment",
            {"GPUSPAWNER_MEMORY_FRACTION": "0.5"},
            '["GPUSPAWNER_MEMORY_FRACTION"]',
            "memory_fraction",
        ),
    ],
)
def test_collisions(key: str, value: Any, place: str, instead: str) -> None:
    ((found, text),) = collisions(key, value, CLOSED)
    assert found == place
    assert instead in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("extra_host_config", {"device_requests": OTHER_REQUESTS, "runtime": "runc"}),
        ("extra_host_config", {"binds": ["/data:/data"], "devices": [], "shm_size": "1g"}),
        ("extra_host_config", lambda spawner: {"privileged": True}),
        ("extra_host_config", None),
        ("extra_create_kwargs", {"labels": {"a": "b"}, "hostname": "x", "environment": {"A": "1"}}),
        ("environment", {"A": "1", "NVIDIA_DRIVER_CAPABILITIES": "all"}),
        ("image", {"runtime": "nvidia"}),
    ],
)
def test_no_collision(key: str, value: Any) -> None:
    assert collisions(key, value, CLOSED) == []
