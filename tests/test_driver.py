"""A hub that asks a driver: cards that fail and come back while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground import image
from ground.engine import Engine
from ground.hub import Hub
from standin import FakeDriver, FakeProcess, Fault, built_or_skip

# What the driver says is the same on either kind; here the engine knows any UUID.
pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
USERS = ["ada", "ben", "cem", "dan"]
TOO_NEW = "gpuspawner-tiny:too-new"
CONFIG = f"""
c.DockerSpawner.allowed_images = {{"plain": {image.TINY!r}, "too-new": {TOO_NEW!r}}}
c.GPUPool.inventory = "nvml"
c.GPUPool.probe_max_age_seconds = 0
# The stand-in's cards have no device nodes, so inside a server there is nothing to be seen.
c.GPUPool.look_inside = False
import gpuspawner
gpuspawner.configure(c)
"""
NOBODY = 2**22 + 1  # no process has such a number
FAULT = "Your GPU has reported a fault. Please save your work now"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(built_or_skip(tmp_path_factory.mktemp("nvml")))


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("driver")
    environment = driver.environment({})
    with gpu_hub(folder, engine, tiny_image, CONFIG, env=environment) as hub:
        hub.add_users(*USERS)
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, driver: FakeDriver, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    for card in driver.cards:
        card.processes, card.used_mib, card.recovery = [], 0, 0
    driver.heal()
    for user in USERS:
        if shared_hub.server(user) is not None:
            shared_hub.stop_server(user)
            shared_hub.wait_stopped(user)
    shared_hub.wait(lambda: not containers(engine), "no container left")
    page = shared_hub.login("dan")
    shared_hub.wait(lambda: "4 of 4 GPUs free" in page.get_form().text, "all cards are well")


def start(hub: Hub, user: str) -> str:
    """Start a user's server; the UUID it was given."""
    hub.start_server(user, ONE)
    hub.wait_ready(user)
    return str(inside(hub, user)["env"]["GPUSPAWNER_DEVICES"])


def start_once_offered(hub: Hub, user: str) -> str:
    """Start a user's server as soon as there is a GPU for it; the UUID it was given."""
    hub.wait(lambda: hub.start_server(user, ONE, check=False).ok, f"a GPU for {user}")
    hub.wait_ready(user)
    return str(inside(hub, user)["env"]["GPUSPAWNER_DEVICES"])


def test_a_lost_card_is_not_offered_and_hides_no_other(
    hub: Hub, engine: Engine, driver: FakeDriver
) -> None:
    first = start(hub, "ada")
    lost = next(uuid for uuid in driver.uuids if uuid != first)
    # Lost after it told its UUID, as a card that falls off the bus under way.
    driver.lose(driver.uuids.index(lost), "nvmlDeviceGetMemoryInfo_v2")
    others = {start(hub, "ben"), start(hub, "cem")}
    assert {first, lost} | others == set(driver.uuids)
    refused = hub.start_server("dan", ONE, check=False)
    assert refused.status_code == 503
    assert "3 GPUs are in use just now, 1 is out of service." in refused.json()["message"]
    assert lost not in refused.json()["message"]
    assert "not offered: GPU is lost" in hub.log

    driver.heal()
    assert start_once_offered(hub, "dan") == lost
    assert cards_in_use(engine) == dict.fromkeys(driver.uuids, 1)


def test_a_container_with_the_hosts_devices_takes_the_card_it_works_on(
    hub: Hub, engine: Engine, driver: FakeDriver, tiny_image: str
) -> None:
    host_config = engine.client.create_host_config(binds=["/dev:/host-dev:ro"])
    foreign = engine.client.create_container(tiny_image, ["sleep", "600"], host_config=host_config)[
        "Id"
    ]
    try:
        engine.client.start(foreign)
        pid = engine.client.inspect_container(foreign)["State"]["Pid"]
        driver.cards[2].processes.append(FakeProcess(pid))
        driver.write()
        given = {start(hub, user) for user in USERS[:3]}
        assert given == set(driver.uuids) - {driver.uuids[2]}
        assert hub.start_server("dan", ONE, check=False).status_code == 503
        driver.cards[2].processes.clear()
        driver.write()
        assert start(hub, "dan") == driver.uuids[2]
    finally:
        driver.cards[2].processes.clear()
        engine.client.remove_container(foreign, force=True)


def test_dirty_and_ill_cards_are_left_alone_and_come_back_by_themselves(
    hub: Hub, engine: Engine, driver: FakeDriver
) -> None:
    mine = start(hub, "ada")
    others = [card for card in driver.cards if card.uuid != mine]
    pid = engine.client.inspect_container(containers(engine)[0]["Id"])["State"]["Pid"]
    next(c for c in driver.cards if c.uuid == mine).processes.append(FakeProcess(pid, 300))
    others[0].processes.append(FakeProcess(NOBODY, 900))
    others[1].used_mib = 2000
    others[2].recovery = 1
    driver.write()
    page = hub.login("ben")
    hub.wait(lambda: "3 are out of service" in page.get_form().text, "three cards not offered")
    refused = hub.start_server("ben", ONE, check=False).json()["message"]
    assert refused.startswith("1 GPU is in use just now, 3 are out of service.")
    for words in (
        f"({others[0].uuid}) is dirty and not offered: process {NOBODY} (900 MiB)",
        f"({others[1].uuid}) is dirty and not offered: 2000 MiB of its memory",
        f"({others[2].uuid}) is ill and not offered: the driver asks for recovery",
    ):
        assert hub.log.count(words) == 1, words
    assert f"{mine}) is" not in hub.log, "a holder's own process is no dirt"

    told = subprocess.run(
        [sys.executable, "-m", "gpuspawner.cli", "devices", "-f", hub.config_path, "--json"],
        cwd=hub.folder,
        env=hub.env,
        capture_output=True,
        check=True,
    )
    states = {d["uuid"]: d["state"] for d in json.loads(told.stdout)["devices"]}
    assert states == {
        mine: "held",
        others[0].uuid: "dirty",
        others[1].uuid: "dirty",
        others[2].uuid: "ill",
    }

    others[0].processes.clear()
    others[1].used_mib = others[2].recovery = 0
    driver.write()
    for card in others:  # nobody asks for anything meanwhile
        healed = f"({card.uuid}) is {'well' if card is others[2] else 'clean'} and offered again"
        hub.wait(lambda words=healed: words in hub.log, healed)  # type: ignore[misc]
    assert start(hub, "ben") in {card.uuid for card in others}


def test_a_fault_under_a_running_server_is_told_to_its_user_on_the_hubs_pages(
    hub: Hub, driver: FakeDriver
) -> None:
    mine = start(hub, "ada")
    ada, ben = hub.login("ada"), hub.login("ben")
    assert FAULT not in ada.get("/hub/home").text
    card = next(c for c in driver.cards if c.uuid == mine)
    card.recovery = 1
    driver.write()
    hub.wait(lambda: FAULT in ada.get("/hub/home").text, "the home page tells of it")
    assert "Stop My Server" in ada.get("/hub/home").text, "the page is the hub's own"
    assert FAULT in ada.get_form("second").text
    assert FAULT not in ben.get("/hub/home").text
    assert hub.log.count("of the running server of user ada is ill") == 1
    assert inside(hub, "ada")["env"]["GPUSPAWNER_DEVICES"] == mine

    card.recovery = 0
    driver.write()
    hub.wait(lambda: FAULT not in ada.get("/hub/home").text, "the notice is taken back")

    # A card that the driver does not name any more; then somebody comes to it.
    driver.cards.remove(card)
    driver.write()
    hub.wait(lambda: FAULT in ada.get("/hub/home").text, "a card that is gone is told of")
    driver.cards.append(card)
    driver.write()
    hub.wait(lambda: FAULT not in ada.get("/hub/home").text, "it is back")
    card.processes.append(FakeProcess(NOBODY, 900))
    driver.write()
    hub.wait(lambda: f"Somebody else is at work on GPU 3 ({mine})" in hub.log, "it is told of")
    assert inside(hub, "ada")["env"]["GPUSPAWNER_DEVICES"] == mine


def test_an_image_for_a_newer_driver_is_refused_on_a_gpu(hub: Hub, engine: Engine) -> None:
    image._tag_with_env(engine.client, image.TINY, TOO_NEW, {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"})
    try:
        refused = hub.start_server("ada", {**ONE, "image": "too-new"}, check=False)
        assert refused.status_code == 503
        assert "needs CUDA 13.0; this machine's driver offers 12.4" in refused.json()["message"]
        assert "NVIDIA_DISABLE_REQUIRE" in hub.log
        assert not containers(engine)
        hub.start_server("ada", {"profile": "cpu", "image": "too-new"})
        hub.wait_ready("ada")
        hub.stop_server("ada")
        hub.wait_stopped("ada")
        hub.wait(lambda: not containers(engine), "no container left")
    finally:
        engine.client.remove_image(TOO_NEW)


def test_a_driver_that_cannot_be_asked_gives_nothing_out_until_it_answers(
    hub: Hub, engine: Engine, driver: FakeDriver
) -> None:
    driver.faults.append(Fault("nvmlInitWithFlags", action=18))
    driver.write()
    refused = hub.start_server("ada", ONE, check=False)
    assert refused.status_code == 503
    assert refused.json()["message"].startswith("The hub can't read the state of its GPUs")
    assert not containers(engine)
    assert "disabled" in hub.login("ada").get_form().text
    hub.start_server("ada", {"profile": "cpu"})  # needs no driver
    hub.wait_ready("ada")

    driver.heal()
    assert start(hub, "ben") in driver.uuids


def test_running_servers_outlive_the_driver(hub: Hub, driver: FakeDriver) -> None:
    uuid = start(hub, "ada")
    driver.faults.append(Fault("*", action="abort"))
    driver.write()
    assert hub.start_server("ben", ONE, check=False).status_code == 503
    assert inside(hub, "ada")["env"]["GPUSPAWNER_DEVICES"] == uuid
    hub.stop_server("ada")
    hub.wait_stopped("ada")
