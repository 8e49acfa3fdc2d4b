"""One user, one card, on real engines through a real hub."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}
USERS = [f"student{n}" for n in range(8)]


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image_all: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    with gpu_hub(folder, engine, tiny_image_all) as hub:
        hub.add_users(*USERS)
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    for user in USERS:
        if shared_hub.server(user) is not None:
            shared_hub.stop_server(user)
            shared_hub.wait_stopped(user)
    shared_hub.wait(lambda: not containers(engine), "no container left")


def test_each_user_gets_another_card_and_the_fifth_is_refused(hub: Hub, engine: Engine) -> None:
    for user in USERS[:4]:
        hub.start_server(user, ONE)
        hub.wait_ready(user)
    seen = [inside(hub, user) for user in USERS[:4]]
    assert {facts["env"]["GPUSPAWNER_DEVICES"] for facts in seen} == set(engine.uuids)
    assert cards_in_use(engine) == dict.fromkeys(engine.uuids, 1)
    assert all((facts["uid"], facts["gid"]) == (1000, 100) for facts in seen)

    refused = hub.start_server(USERS[4], ONE, check=False)
    assert refused.status_code == 503
    assert refused.json()["message"] == (
        "All 4 GPUs are in use just now. You can start without a GPU, or try again in a few "
        "minutes. Your files are safe."
    )
    hub.start_server(USERS[4], CPU)
    hub.wait_ready(USERS[4])


def test_a_server_sees_only_what_it_was_given(hub: Hub, engine: Engine) -> None:
    hub.start_server(USERS[0], ONE)
    hub.start_server(USERS[1], CPU)
    hub.wait_ready(USERS[0])
    hub.wait_ready(USERS[1])
    gpu, cpu = inside(hub, USERS[0]), inside(hub, USERS[1])
    uuid = gpu["env"]["GPUSPAWNER_DEVICES"]
    assert cpu["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert cpu["env"]["GPUSPAWNER_DEVICES"] == ""
    assert not [name for name in cpu["dev"] if name.startswith("nvidia")]
    if engine.kind == "cdi":
        assert gpu["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
        number = engine.uuids.index(uuid)
        assert [n for n in gpu["dev"] if n.startswith("nvidia")] == [f"nvidia{number}"]
    else:
        assert gpu["env"]["NVIDIA_VISIBLE_DEVICES"] == uuid


def test_a_stopped_server_gives_its_card_back(hub: Hub, engine: Engine) -> None:
    for user in USERS[:4]:
        hub.start_server(user, ONE)
        hub.wait_ready(user)
    freed = inside(hub, USERS[2])["env"]["GPUSPAWNER_DEVICES"]
    hub.stop_server(USERS[2])
    hub.wait_stopped(USERS[2])
    hub.start_server(USERS[5], ONE)
    hub.wait_ready(USERS[5])
    assert inside(hub, USERS[5])["env"]["GPUSPAWNER_DEVICES"] == freed


def test_a_foreign_container_takes_its_card_out(hub: Hub, engine: Engine, tiny_image: str) -> None:
    uuid = engine.uuids[1]
    # As `docker run --gpus '"device=UUID"'` sends it.
    request = {"DeviceIDs": [uuid], "Capabilities": [["gpu"]]}
    host_config = engine.client.create_host_config(device_requests=[request])
    foreign = engine.client.create_container(tiny_image, ["sleep", "600"], host_config=host_config)[
        "Id"
    ]
    engine.client.start(foreign)
    try:
        for user in USERS[:3]:
            hub.start_server(user, ONE)
            hub.wait_ready(user)
        assert hub.start_server(USERS[3], ONE, check=False).status_code == 503
        assert cards_in_use(engine) == dict.fromkeys(engine.uuids, 1)
    finally:
        engine.client.remove_container(foreign, force=True)
    hub.start_server(USERS[3], ONE)
    hub.wait_ready(USERS[3])
    assert inside(hub, USERS[3])["env"]["GPUSPAWNER_DEVICES"] == uuid


def test_an_exporter_with_all_cards_takes_none_out(
    hub: Hub, engine: Engine, tiny_image: str
) -> None:
    repository = "registry.example.org/nvidia/dcgm-exporter"
    engine.client.tag(tiny_image, repository, "1")
    # As `docker run --gpus all` sends it.
    request = {"Count": -1, "Capabilities": [["gpu"]]}
    host_config = engine.client.create_host_config(device_requests=[request])
    exporter = engine.client.create_container(
        f"{repository}:1", ["sleep", "600"], host_config=host_config
    )["Id"]
    engine.client.start(exporter)
    try:
        for user in USERS[:4]:
            hub.start_server(user, ONE)
            hub.wait_ready(user)
        seen = {inside(hub, user)["env"]["GPUSPAWNER_DEVICES"] for user in USERS[:4]}
        assert seen == set(engine.uuids)
    finally:
        engine.client.remove_container(exporter, force=True)
        engine.client.remove_image(f"{repository}:1")


def test_many_at_once_get_exactly_the_cards_there_are(
    engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    users = [f"many{n}" for n in range(100)]
    # Every POST is answered with its end, however busy the machine is.
    patient = 'c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}'
    with gpu_hub(tmp_path, engine, tiny_image, patient) as hub:
        hub.add_users(*users)
        with ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(lambda user: hub.start_server(user, ONE, check=False), users))
        refused = [a for a in answers if a.status_code == 503]
        granted = [u for u, a in zip(users, answers, strict=True) if a.status_code == 201]
        assert (len(granted), len(refused)) == (4, 96)
        assert all("in use just now" in a.json()["message"] for a in refused)
        for user in granted:
            hub.wait_ready(user)
        assert cards_in_use(engine) == dict.fromkeys(engine.uuids, 1)
        assert len(containers(engine)) == 4
        for user in granted:
            hub.stop_server(user)
            hub.wait_stopped(user)
        hub.wait(lambda: not containers(engine), "no container left")


INTRUDER = """
from gpuspawner.pool import GPUPool

looked = GPUPool.look


async def look(self, attempt, container_id):
    fits = await looked(self, attempt, container_id)
    if fits and not hasattr(GPUPool, "intruded"):
        GPUPool.intruded = True
        client = self.engine.client
        request = {"Driver": "nvidia", "DeviceIDs": list(attempt.devices)}
        request["Capabilities"] = [["gpu"]]
        host = client.create_host_config(device_requests=[request])
        made = client.create_container(IMAGE, ["sleep", "600"], host_config=host, name="intruder")
        client.start(made["Id"])
    return fits


GPUPool.look = look
"""


def test_a_server_moves_if_an_outsider_started_on_its_card_in_between(
    engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    config = f"IMAGE = {tiny_image!r}\n{INTRUDER}"
    with gpu_hub(tmp_path, engine, tiny_image, config) as hub:
        hub.add_users("ada")
        hub.start_server("ada", ONE)
        hub.wait_ready("ada")
        mine = inside(hub, "ada")["env"]["GPUSPAWNER_DEVICES"]
        outside = engine.client.inspect_container("intruder")
        assert outside["State"]["Running"]
        assert outside["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] != [mine]
        assert cards_in_use(engine)[mine] == 1
        hub.stop_server("ada")
        hub.wait_stopped("ada")
    engine.client.remove_container("intruder", force=True)
    assert not containers(engine)
