"""Refusals on JupyterHub 5, which knows no SpawnException and ends after too many failures."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape

import pytest

from gpu_hub import containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
ALL_TAKEN = (
    "All 4 GPUs are in use just now. You can start without a GPU, or try again in a few minutes. "
    "Your files are safe."
)
CONFIG = """
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "All GPUs", "slug": "all-gpus", "gpu": {"count": 4}},
    {"display_name": "Teachers", "slug": "teachers", "gpu": {"count": 1}, "groups": ["teachers"]},
    {"display_name": "CPU only", "slug": "cpu"},
]
c.GPUSpawner.max_gpus_per_user = 4
c.Spawner.consecutive_failure_limit = 3
"""


@pytest.fixture(scope="module")
def hub(
    python5: str, engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub5")
    with gpu_hub(folder, engine, tiny_image, CONFIG, python=python5) as hub:
        hub.add_users("holder", "late")
        hub.start_server("holder", {"profile": "all-gpus"})
        hub.wait_ready("holder")
        yield hub
        hub.stop_server("holder")
        hub.wait_stopped("holder")
        hub.wait(lambda: not containers(engine), "no container left")


def test_the_text_is_the_same_at_every_door(hub: Hub) -> None:
    assert len(inside(hub, "holder")["env"]["GPUSPAWNER_DEVICES"].split(",")) == 4
    rest = hub.start_server("late", ONE, check=False)
    assert (rest.status_code, rest.json()["message"]) == (429, ALL_TAKEN)
    student = hub.login("late")
    doors = [
        student.refused_form(ONE),
        student.refused_link(**ONE),
        student.refused_link(**{"opt-profile": "one-gpu"}),
        student.pending_page(),
    ]
    for page in doors:
        assert page.status_code == 429
        assert ALL_TAKEN in unescape(page.text)
        assert "Traceback" not in page.text
    [event] = hub.progress("late")
    assert event["failed"]
    assert event["message"] == f"Spawn failed: {ALL_TAKEN}"


def test_refusals_never_end_the_hub(hub: Hub) -> None:
    for _ in range(5):
        assert hub.start_server("late", ONE, check=False).status_code == 429
    student = hub.login("late")
    for _ in range(5):
        assert student.refused_form(ONE).status_code == 429
    assert hub.running
    assert hub.start_server("late", {"profile": "cpu"}).status_code in (201, 202)
    hub.wait_ready("late")
    hub.stop_server("late")
    hub.wait_stopped("late")


def test_other_refusals_keep_their_status(hub: Hub) -> None:
    assert hub.start_server("late", {"profile": "teachers"}, check=False).status_code == 403
    for bad in ({"profile": "nothing"}, {"profile": 3}, {"profile": "cpu", "image": "evil"}):
        for _ in range(4):  # more than the limit
            answer = hub.start_server("late", bad, check=False)
            assert answer.status_code == 400
            assert answer.json()["message"]
    assert hub.api("POST", "users/late/server", check=False, json=[1]).status_code == 400
    student = hub.login("late")
    assert student.refused_form({"profile": "teachers"}).status_code == 403
    assert student.refused_form({"profile": "nothing"}).status_code == 400
    assert hub.running


def test_a_restart_keeps_servers(hub: Hub) -> None:
    devices = inside(hub, "holder")["env"]["GPUSPAWNER_DEVICES"]
    hub.kill()
    hub.start()
    hub.wait_ready("holder")
    assert inside(hub, "holder")["env"]["GPUSPAWNER_DEVICES"] == devices
    assert hub.start_server("late", ONE, check=False).status_code == 429
