"""Other hands on running servers: what `docker` does behind the hub's back, all at once.

The hub polls only where a test makes it: whatever it knows then, it knows after one poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import docker
import pytest
import requests

from events import Overlaps
from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CONFIG = """
c.GPUPool.inventory = {"simulated": 16}
c.GPUSpawner.poll_interval = 3600
"""
ALWAYS = {"Name": "always"}
Deed = Callable[["Scene", str], object]


@dataclass
class Scene:
    """One hub whose servers were all meddled with.

    Attributes:
        ids: container of each user before that.
        cards: card of each user before that.
        polled: what the hub answered to whoever caused the one poll.
        strangers: containers that are not the hub's.
    """

    hub: Hub
    engine: Engine
    ids: dict[str, str] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)
    polled: dict[str, requests.Response] = field(default_factory=dict)
    strangers: dict[str, str] = field(default_factory=dict)

    @property
    def client(self) -> docker.APIClient:
        return self.engine.client

    def row(self, user: str) -> dict[str, Any]:
        """The container that this user's server has now."""
        rows = [
            row
            for row in containers(self.engine)
            if row["Labels"].get("gpuspawner.user") == user
            if row["Id"] not in self.strangers.values()
        ]
        assert len(rows) == 1, rows
        return rows[0]

    def run_stranger(self, user: str, image: str, **kwargs: Any) -> None:
        made = self.client.create_container(image, ["sleep", "3600"], **kwargs)["Id"]
        self.strangers[user] = made
        self.client.start(made)


def exits(code: int) -> Deed:
    return lambda scene, user: scene.hub.exit_server(user, code)


def runs_out_of_memory(scene: Scene, user: str) -> None:
    """The kernel kills its first process, as the fattest of them."""
    one = scene.ids[user]
    scene.client.update_container(one, mem_limit="48m", memswap_limit="48m")
    greedy = "echo 1000 > /proc/1/oom_score_adj; exec dd if=/dev/zero of=/dev/shm/x bs=1M"
    command = scene.client.exec_create(one, ["sh", "-c", greedy], user="root")["Id"]
    scene.client.exec_start(command)
    scene.client.wait(one, timeout=60)
    assert scene.client.inspect_container(one)["State"]["OOMKilled"]


def update_and_stop(scene: Scene, user: str) -> None:
    scene.client.update_container(scene.ids[user], restart_policy=ALWAYS)
    scene.client.stop(scene.ids[user], timeout=0)


def rename_and_kill(scene: Scene, user: str) -> None:
    scene.client.rename(scene.ids[user], "under-another-name")
    scene.client.kill(scene.ids[user])


#: What ends a server, and how the hub comes to poll it: its page is opened, or it is started again.
ENDS: dict[str, tuple[Deed, str]] = {
    "stopped": (lambda scene, user: scene.client.stop(scene.ids[user], timeout=0), "page"),
    "killed": (lambda scene, user: scene.client.kill(scene.ids[user]), "start"),
    "removed": (
        lambda scene, user: scene.client.remove_container(scene.ids[user], force=True),
        "start",
    ),
    "ended": (exits(0), "start"),
    "failed": (exits(3), "page"),
    "out-of-memory": (runs_out_of_memory, "start"),
    "updated-and-stopped": (update_and_stop, "page"),
    "renamed-and-killed": (rename_and_kill, "start"),
}


def restart(scene: Scene, user: str) -> None:
    scene.client.restart(scene.ids[user], timeout=0)


def rename(scene: Scene, user: str) -> None:
    """And a stranger takes the name, and holds nothing."""
    name = scene.row(user)["Names"][0].lstrip("/")
    scene.client.rename(scene.ids[user], "by-another-name")
    scene.run_stranger(user, scene.row(user)["Image"], name=name)


def update_and_exit(scene: Scene, user: str) -> None:
    """With a restart policy it comes back by itself."""
    before = scene.client.inspect_container(scene.ids[user])["RestartCount"]
    scene.client.update_container(scene.ids[user], restart_policy=ALWAYS)
    scene.hub.exit_server(user)

    def back() -> bool:
        told = scene.client.inspect_container(scene.ids[user])
        return bool(told["RestartCount"] > before and told["State"]["Running"])

    scene.hub.wait(back, f"{user} has come back")


def commit_and_run(scene: Scene, user: str) -> None:
    """A copy has the labels of ours, and by hand its card too."""
    scene.client.commit(scene.ids[user], "copy-of-ours")
    gpu = docker.types.DeviceRequest(
        driver="nvidia", device_ids=[scene.cards[user]], capabilities=[["gpu"]]
    )
    host = scene.client.create_host_config(device_requests=[gpu])
    scene.run_stranger(user, "copy-of-ours", host_config=host)


#: What leaves a server alive.
STAYS: dict[str, Deed] = {
    "paused": lambda scene, user: scene.client.pause(scene.ids[user]),
    "restarted": restart,
    "restarted-too": restart,
    "renamed": rename,
    "updated": update_and_exit,
    "copied": commit_and_run,
    "cut-off": lambda scene, user: scene.client.disconnect_container_from_network(
        scene.ids[user], "bridge"
    ),
}
USERS = [*ENDS, *STAYS]


def servers(labels: Mapping[str, str]) -> list[str]:
    """A copy by hand has the labels of ours."""
    return [] if labels["image"] == "copy-of-ours" else [labels["gpuspawner.user"]]


@pytest.fixture(scope="module")
def scene(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """All servers started, meddled with, and polled once."""
    twins = Overlaps(engine, servers)
    try:
        with gpu_hub(tmp_path_factory.mktemp("outside"), engine, tiny_image, CONFIG) as hub:
            scene = Scene(hub, engine)
            hub.add_users(*USERS)
            with ThreadPoolExecutor(len(USERS)) as pool:
                list(pool.map(lambda user: start(scene, user), USERS))
                for user in USERS:
                    row = scene.row(user)
                    scene.ids[user] = row["Id"]
                    scene.cards[user] = row["Labels"]["gpuspawner.devices"]
                deeds = {user: deed for user, (deed, _) in ENDS.items()} | STAYS
                list(pool.map(lambda user: deeds[user](scene, user), USERS))
                for user, answer in pool.map(lambda user: (user, poll(scene, user)), USERS):
                    scene.polled[user] = answer
            yield scene
            # Nobody ever had two, whatever was done.
            assert not twins.found
    finally:
        twins.close()
        engine.remove_containers()
        engine.client.remove_image("copy-of-ours")


def start(scene: Scene, user: str) -> requests.Response:
    answer = scene.hub.start_server(user, ONE, check=False)
    if answer.ok:
        scene.hub.wait_ready(user)
    return answer


def poll(scene: Scene, user: str) -> requests.Response:
    """Have the hub poll once, by what people do."""
    if user in ENDS and ENDS[user][1] == "page":
        return scene.hub.login(user).get("/hub/home")
    return start(scene, user)


@pytest.mark.parametrize("user", [user for user in ENDS if ENDS[user][1] == "page"])
def test_the_page_says_stopped_and_the_card_is_free(scene: Scene, user: str) -> None:
    page = scene.polled[user]
    assert page.status_code == 200
    assert 'id="start"' in page.text
    assert 'id="stop"' not in page.text
    assert scene.hub.server(user) is None
    scene.hub.wait(
        lambda: scene.ids[user] not in {row["Id"] for row in containers(scene.engine)},
        "its container is removed",
    )
    assert start(scene, user).ok
    assert inside(scene.hub, user)["env"]["JUPYTERHUB_USER"] == user


@pytest.mark.parametrize("user", [user for user in ENDS if ENDS[user][1] == "start"])
def test_a_start_that_follows_at_once_works(scene: Scene, user: str) -> None:
    assert scene.polled[user].status_code in (201, 202), scene.polled[user].text
    assert scene.row(user)["Id"] != scene.ids[user]
    told = inside(scene.hub, user)["env"]
    assert told["JUPYTERHUB_USER"] == user
    assert told["GPUSPAWNER_DEVICES"] == scene.row(user)["Labels"]["gpuspawner.devices"] != ""


@pytest.mark.parametrize("user", [user for user in STAYS if user not in ("paused", "cut-off")])
def test_what_runs_keeps_its_card_and_its_route(scene: Scene, user: str) -> None:
    assert_runs_on(scene, user)
    told = inside(scene.hub, user)["env"]
    assert told["JUPYTERHUB_USER"] == user
    assert told["GPUSPAWNER_DEVICES"] == scene.cards[user]


def assert_runs_on(scene: Scene, user: str) -> None:
    answer = scene.polled[user]
    assert (answer.status_code, "already running" in answer.text) == (400, True), answer.text
    server = scene.hub.server(user)
    assert server is not None
    assert server["ready"]
    assert scene.row(user)["Id"] == scene.ids[user]


def test_one_that_was_paused_goes_on(scene: Scene) -> None:
    assert_runs_on(scene, "paused")
    assert scene.row("paused")["State"] == "paused"
    scene.client.unpause(scene.ids["paused"])
    assert inside(scene.hub, "paused")["env"]["GPUSPAWNER_DEVICES"] == scene.cards["paused"]


def test_one_that_was_cut_off_is_reached_again(scene: Scene) -> None:
    assert_runs_on(scene, "cut-off")
    assert scene.hub.user_get("cut-off", "env").status_code == 503
    scene.client.connect_container_to_network(scene.ids["cut-off"], "bridge")
    assert start(scene, "cut-off").status_code == 400
    told = inside(scene.hub, "cut-off")["env"]
    assert told["JUPYTERHUB_USER"] == "cut-off"
    assert told["GPUSPAWNER_DEVICES"] == scene.cards["cut-off"]


def test_strangers_are_left_alone_and_what_they_hold_is_not_given_out(scene: Scene) -> None:
    for user in ("renamed", "copied"):
        scene.hub.stop_server(user)
        scene.hub.wait_stopped(user)
        assert start(scene, user).ok, scene.hub.log[-3000:]
        assert scene.row(user)["Id"] != scene.ids[user]
    for stranger in scene.strangers.values():
        assert scene.client.inspect_container(stranger)["State"]["Running"]
    assert scene.row("copied")["Labels"]["gpuspawner.devices"] != scene.cards["copied"]
    assert max(cards_in_use(scene.engine).values()) == 1
