"""The machine loses power and comes back: leases follow what is there then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}
CONFIG = """
import gpuspawner
c.GPUPool.release_delay_seconds = 1
c.GPUPool.clean_interval_seconds = 0.5
gpuspawner.configure(c)
"""


@pytest.fixture
def machine(clean_engine: Engine) -> Iterator[Engine]:
    """It runs again after the test, whatever happened."""
    yield clean_engine
    if not clean_engine.running:
        clean_engine.power_on()


def outsider(engine: Engine, image: str, uuid: str, restart: str) -> str:
    """``docker run --gpus`` by hand."""
    request = docker.types.DeviceRequest(driver="nvidia", device_ids=[uuid], capabilities=[["gpu"]])
    host = engine.client.create_host_config(
        device_requests=[request], restart_policy={"Name": restart}
    )
    made: str = engine.client.create_container(image, ["sleep", "9999"], host_config=host)["Id"]
    engine.client.start(made)
    return made


def test_after_a_reboot_leases_follow_what_is_there(
    machine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    with gpu_hub(tmp_path / "hub", machine, tiny_image, CONFIG) as hub:
        hub.add_users("ada", "ben", "cleo", "dan", "eve")
        for user, options in (("ada", ONE), ("ben", CPU), ("eve", ONE)):
            hub.start_server(user, options)
            hub.wait_ready(user)
        ours = {row["Labels"]["gpuspawner.user"]: row for row in containers(machine)}
        card = {user: row["Labels"]["gpuspawner.devices"] for user, row in ours.items()}
        free = sorted(set(machine.uuids) - set(card.values()))
        # Somebody wants this one to come back.
        eve = ours["eve"]["Id"]
        machine.client.update_container(eve, restart_policy={"Name": "always"})
        back = outsider(machine, tiny_image, free[0], "always")
        gone = outsider(machine, tiny_image, free[1], "no")
        # As a start that the power cut ended after its create.
        labels = ours["ada"]["Labels"] | {
            "gpuspawner.lease": "0" * 32,
            "gpuspawner.user": "cleo",
            "gpuspawner.devices": free[1],
        }
        machine.client.create_container(tiny_image, ["true"], labels=labels)

        hub.kill()
        machine.power_off()
        hub.stop()  # its proxy
        machine.power_on()
        states = {row["Id"]: row["State"] for row in containers(machine)}
        assert states.pop(back) == states.pop(eve) == "running"
        assert set(states.values()) == {"exited", "created"}

        hub.start()
        for user in ("ada", "ben"):
            hub.wait_stopped(user)
        hub.wait(lambda: len(containers(machine)) == 3, "ours that ended are gone, outsiders' stay")
        assert {row["Id"] for row in containers(machine)} == {back, gone, eve}
        hub.wait_ready("eve")
        assert inside(hub, "eve")["env"]["GPUSPAWNER_DEVICES"] == card["eve"]

        def the_others_can_be_had() -> bool:
            for user in ("ada", "cleo"):
                if hub.server(user) is None:
                    hub.start_server(user, ONE, check=False)
            return all(hub.server(user) for user in ("ada", "cleo"))

        hub.wait(the_others_can_be_had, "the cards of what did not come back are free again")
        for user in ("ada", "cleo"):
            hub.wait_ready(user)
            assert inside(hub, user)["env"]["GPUSPAWNER_DEVICES"] in (card["ada"], free[1])
        assert hub.start_server("dan", ONE, check=False).status_code == 503
        assert cards_in_use(machine) == dict.fromkeys(machine.uuids, 1)
