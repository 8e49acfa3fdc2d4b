"""Ways in that were found by looking for them: each was open once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import requests
from docker import APIClient
from docker.types import DeviceRequest

from fakes.rows import cards
from gpu_hub import containers, gpu_hub
from gpuspawner.asks import EngineFacts, parse_asks
from gpuspawner.attempts import Attempt
from gpuspawner.connection import EngineClient
from gpuspawner.containment import ContainmentError, Policy, contain, grant
from gpuspawner.engine import Engine as OurEngine
from gpuspawner.errors import EngineUnknown
from gpuspawner.identity import resolve_identity
from gpuspawner.manifest import Owner, build, read_image
from ground.engine import Engine
from ground.hub import Hub

CLOSED = Policy(resolve_identity(1000, 100))
ALL = {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}


# -- the engine reads JSON keys in any case -----------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        {"privileged": True},
        {"PRIVILEGED": True},
        {"pidmode": "host"},
        {"capadd": ["SYS_ADMIN"]},
        {"securityopt": ["seccomp=unconfined"]},
        {"maſkedpaths": []},  # the engine folds this letter to an s too
        {"binds": ["/dev:/mnt"]},
        {"devices": [{"PathOnHost": "/dev/kmsg"}]},
        {"Devices": [{"pathonhost": "/dev/kmsg"}]},
        {"Mounts": [{"type": "bind", "source": "/dev", "target": "/mnt"}]},
        {
            "Mounts": [
                {
                    "Target": "/mnt",
                    "volumeoptions": {"driverconfig": {"options": {"device": "/dev"}}},
                }
            ]
        },
        {"Privileged": False, "privileged": True},
        {"SecurityOpt": ["no-new-privileges=False"]},
        {"SecurityOpt": ["no-new-privileges:0"]},
        {"SecurityOpt": ["no-new-privileges=f"]},
    ],
    ids=str,
)
def test_an_open_container_is_refused_however_it_is_spelled(host: dict[str, Any]) -> None:
    with pytest.raises(ContainmentError):
        contain({"image": "i", "host_config": host}, CLOSED)


@pytest.mark.parametrize(
    "host",
    [
        {"devicerequests": [{"Driver": "nvidia", "Count": -1}]},
        {"DeviceRequests": [{"driver": "cdi", "deviceids": ["nvidia.com/gpu=all"]}]},
        {"DeviceRequests": [{"DRIVER": "cdi", "DEVICEIDS": ["nvidia.com/gpu=all"]}]},
        {"DeviceRequests": [{"Count": -1, "capabilities": [["gpu"]]}]},
        {"DeviceRequests": [DeviceRequest(count=-1, capabilities=[["compute"]])]},
        {"DeviceRequests": [DeviceRequest(count=-1, capabilities=[["fpga"], ["nvidia"]])]},
        {"DeviceRequests": [DeviceRequest(count=-1, capabilities=[[]])]},
        {"devices": [{"pathonhost": "/dev/nvidia0"}]},
        {"runtime": "nvidia"},
    ],
    ids=str,
)
def test_a_gpu_is_dropped_however_it_is_spelled(host: dict[str, Any]) -> None:
    final, notes = contain({"image": "i", "host_config": host}, CLOSED)
    left = final["host_config"]
    assert notes
    assert not left["DeviceRequests"]
    assert not left.get("Devices")
    assert "nvidia" not in json.dumps(left)


def test_other_settings_keep_their_values_and_plugins_their_words() -> None:
    mount = {
        "Type": "volume",
        "Target": "/data",
        "VolumeOptions": {"DriverConfig": {"Name": "local", "Options": {"type": "nfs", "o": "x"}}},
    }
    host = {"memory": 2**30, "Mounts": [mount], "Sysctls": {"devices": "1"}}
    left = contain({"image": "i", "host_config": host}, CLOSED)[0]["host_config"]
    assert left["ShmSize"] == 2**29
    assert left["Mounts"] == [mount]
    assert left["Sysctls"] == {"devices": "1"}


# -- what an image brings along -----------------------------------------------------------------


def test_an_images_labels_do_not_say_what_a_container_holds() -> None:
    image = read_image(
        {
            "Id": "sha256:1",
            "Config": {
                "Labels": {
                    "gpuspawner.role": "observer",
                    "gpuspawner.devices": "",
                    "gpuspawner.some": "thing",
                    "other": "kept by the engine",
                }
            },
        }
    )
    labels = build(
        {"image": "i"},
        attempt=Attempt("lease", ("GPU-0",), Fraction(1), ("ann", "")),
        owner=Owner("hub", "ann", "", "one-gpu", {}),
        image=image,
        policy=CLOSED,
        driver="cdi",
        fraction=Fraction(1),
    ).kwargs["labels"]
    assert labels["gpuspawner.role"] == ""
    assert labels["gpuspawner.some"] == ""
    assert labels["gpuspawner.devices"] == "GPU-0"
    assert "other" not in labels


@pytest.mark.parametrize("devices", [(), ("GPU-0",)])
@pytest.mark.parametrize("driver", ["cdi", "nvidia", "none"])
@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS"]
)
def test_an_image_does_not_choose_among_cards(
    devices: tuple[str, ...], driver: str, name: str
) -> None:
    closed, _ = contain({"image": "i"}, CLOSED)
    env = grant(closed, devices, driver, image_env={name: "7"})["environment"]
    assert env[name] is None


# -- cards in the hands of outsiders that went unseen -------------------------------------------


def held(*env: str, **request: Any) -> frozenset[str]:
    inspection = {
        "Id": "f" * 64,
        "Config": {"Image": "i", "Env": list(env), "Labels": {}},
        "HostConfig": {"Runtime": "runc", "DeviceRequests": [request]},
    }
    return parse_asks(inspection, EngineFacts()).resolve(cards(4))[0]


@pytest.mark.parametrize("capabilities", [[["nvidia"]], [["compute"]], [["tpu"], ["video"]], [[]]])
def test_the_engine_finds_nvidias_driver_by_any_of_its_words(
    capabilities: list[list[str]],
) -> None:
    assert held(Driver="", Count=-1, Capabilities=capabilities) == ALL


def test_ids_joined_by_commas_are_several() -> None:
    request = {"Driver": "nvidia", "DeviceIDs": ["0,2"], "Capabilities": [["gpu"]]}
    assert held(**request) == {"GPU-0", "GPU-2"}


def test_a_request_without_ids_or_count_leaves_it_to_the_variable() -> None:
    request = {"Driver": "nvidia", "Count": 0, "Capabilities": [["gpu"]]}
    assert held("NVIDIA_VISIBLE_DEVICES=all", **request) == ALL
    assert held("NVIDIA_VISIBLE_DEVICES=1,3", **request) == {"GPU-1", "GPU-3"}
    assert held(**request) == frozenset()


def test_another_makers_request_is_not_nvidias() -> None:
    assert held(Driver="amd", Count=-1, Capabilities=[["gpu"]]) == frozenset()
    assert held(Driver="", Count=-1, Capabilities=[["amd"]]) == frozenset()


# -- an engine that is upgraded under a running hub ---------------------------------------------


class Upgraded(EngineClient):
    """A client of an older version of the API, as an upgraded engine answers it."""

    def __init__(self, text: str) -> None:
        super().__init__(base_url="http://fake:1", version="1.41")
        self._text = text

    def _get(self, _path: str, **_kwargs: Any) -> requests.Response:
        answer = requests.Response()
        answer.url = "http+docker://localhost"
        answer.status_code, answer._content = 400, json.dumps({"message": self._text}).encode()
        return answer


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        ("client version 1.41 is too old. Minimum supported API version is 1.44", 2),
        ("client version 1.51 is too new. Maximum supported API version is 1.41", 2),
        ("some other fault", 1),
    ],
)
async def test_a_version_the_engine_no_longer_speaks_is_agreed_on_anew(
    text: str, clients: int
) -> None:
    made: list[Upgraded] = []

    def make() -> Upgraded:
        made.append(Upgraded(text))
        return made[-1]

    engine = OurEngine(make)
    for _ in range(2):
        with pytest.raises(EngineUnknown):
            await engine.listing()
    assert len(made) == clients
    engine.close()


@pytest.mark.parametrize(
    "inspection",
    [
        [],
        {"Config": "no dict"},
        {"HostConfig": {"DeviceRequests": [{"Driver": "nvidia", "Count": "many"}]}},
        {"State": {"FinishedAt": "yesterday"}},
    ],
    ids=str,
)
async def test_an_inspection_that_can_not_be_read_is_unknown(inspection: Any) -> None:
    row = {"Id": "f" * 64, "Created": 1, "ImageID": "sha256:1", "State": "running", "Labels": {}}
    answers = {
        "/info": {},
        "/containers/json": [row],
        f"/containers/{row['Id']}/json": inspection,
    }

    class Client:
        def _url(self, path: str) -> str:
            return path

        def _get(self, path: str, **_kwargs: Any) -> requests.Response:
            answer = requests.Response()
            answer.status_code, answer._content = 200, json.dumps(answers[path]).encode()
            answer.headers["Date"] = "Mon, 01 Jan 2024 00:00:00 GMT"
            return answer

        def _raise_for_status(self, response: requests.Response) -> None:
            response.raise_for_status()

    engine = OurEngine(Client, unknown_retry_seconds=0)
    with pytest.raises(EngineUnknown, match="could not be inspected"):
        await engine.survey()
    engine.close()


# -- on real engines ----------------------------------------------------------------------------

CONFIG = """
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "CPU only", "slug": "cpu"},
    {
        "display_name": "Your size",
        "slug": "sized",
        "profile_options": {
            "memory": {
                "unlisted_choice": {
                    "enabled": True,
                    "validation_regex": ".+",
                    "spawner_override": {"mem_limit": "{value}"},
                }
            }
        },
    },
]
c.GPUSpawner.allowed_images = "*"
c.GPUSpawner.pull_policy = "never"
c.GPUSpawner.extra_create_kwargs = lambda spawner: (
    {"host_config": {"privileged": True}} if spawner.user.name == "opened" else {}
)
"""


def label_image(client: APIClient, base: str, tag: str, labels: str) -> str:
    """The image with labels baked in, as anybody can build who can build images."""
    container = client.create_container(base)
    client.commit(container, "gpuspawner-tiny", tag, changes=f"LABEL {labels}")
    client.remove_container(container)
    return f"gpuspawner-tiny:{tag}"


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("breaks"), engine, tiny_image, CONFIG) as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    for row in containers(engine):
        labels = row["Labels"]
        if "gpuspawner.user" in labels:
            shared_hub.stop_server(labels["gpuspawner.user"], labels["gpuspawner.server"])
        else:
            engine.client.remove_container(row["Id"], force=True)
    shared_hub.wait(lambda: not containers(engine), "no container left")


@pytest.mark.parametrize("role", ["observer", "probe", "mps"])
def test_a_role_baked_into_an_image_hides_no_card(hub: Hub, engine: Engine, role: str) -> None:
    image = label_image(engine.client, "gpuspawner-tiny:latest", role, f"gpuspawner.role={role}")
    for number in range(4):
        user = f"{role}{number}"
        hub.add_users(user)
        hub.start_server(user, {"profile": "one-gpu", "image": image})
        hub.wait_ready(user)
    labels = [row["Labels"] for row in containers(engine)]
    assert {one["gpuspawner.role"] for one in labels} == {""}
    assert len({one["gpuspawner.devices"] for one in labels}) == 4
    hub.add_users(f"{role}-late")
    answer = hub.start_server(f"{role}-late", {"profile": "one-gpu"}, check=False)
    assert answer.status_code == 503


def test_privileged_in_small_letters_is_refused(hub: Hub, engine: Engine) -> None:
    hub.add_users("opened")
    answer = hub.start_server("opened", {"profile": "cpu"}, check=False)
    assert answer.status_code == 503
    assert "settings don't allow" in answer.json()["message"]
    assert not containers(engine)


def test_a_text_that_the_setting_does_not_take_is_the_users_mistake(hub: Hub) -> None:
    hub.add_users("sizer")
    options = {"profile": "sized", "memory--unlisted-choice": "<b>huge</b>"}
    answer = hub.start_server("sizer", options, check=False)
    assert answer.status_code == 400
    assert "does not fit" in answer.json()["message"]
    page = hub.login("sizer").refused_form(
        {
            "profile": "sized",
            "profile-option-sized--memory--unlisted-choice": "<b>huge</b>",
        }
    )
    assert page.status_code == 400
    assert "<b>huge" not in page.text


def test_an_outsider_known_by_another_word_holds_its_cards(hub: Hub, engine: Engine) -> None:
    client = engine.client
    container = client.create_container(
        "gpuspawner-tiny:latest",
        command=["sleep", "600"],
        host_config=client.create_host_config(
            device_requests=[DeviceRequest(count=-1, capabilities=[["nvidia"]])]
        ),
    )
    calls = len(engine.hook_calls())
    client.start(container)
    assert len(engine.hook_calls()) == calls + 1  # the engine did give it to NVIDIA's driver
    hub.add_users("late")
    answer = hub.start_server("late", {"profile": "one-gpu"}, check=False)
    assert answer.status_code == 503
    assert "in use" in answer.json()["message"]
