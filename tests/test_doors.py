"""A refusal reads the same at every door, and bad input is refused at every door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape

import pytest

from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub

# What a user reads does not depend on the kind of engine.
pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ALL_TAKEN = "All 4 GPUs are in use just now."
PROFILES = """
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "All GPUs", "slug": "all-gpus", "gpu": {"count": 4}},
    {"display_name": "Teachers", "slug": "teachers", "gpu": {"count": 1}, "groups": ["teachers"]},
    {"display_name": "CPU only", "slug": "cpu"},
]
c.GPUSpawner.max_gpus_per_user = 4
c.Spawner.consecutive_failure_limit = 3
# Every answer is the last word, however busy the machine is.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}
"""


@pytest.fixture(scope="module")
def hub(engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("doors"), engine, tiny_image, PROFILES) as hub:
        hub.add_users("holder", "late", "curious")
        yield hub
        if hub.server("holder"):
            hub.stop_server("holder")


@pytest.fixture
def full(hub: Hub) -> Hub:
    if hub.server("holder") is None:
        hub.start_server("holder", {"profile": "all-gpus"})
        hub.wait_ready("holder")
    return hub


def test_form_submitted_late_says_why_not(full: Hub) -> None:
    page = full.login("late").refused_form({"profile": "one-gpu"})
    assert page.status_code == 503
    assert ALL_TAKEN in unescape(page.text)
    assert "SpawnException" not in page.text
    assert "Traceback" not in page.text


def test_form_shows_the_full_profile_disabled_and_the_cpu_one_open(full: Hub) -> None:
    page = full.login("late").get_form().text
    assert ALL_TAKEN in page
    assert "disabled" in _input(page, "one-gpu")
    assert "disabled" not in _input(page, "cpu")
    assert "Open to other groups only." in page
    assert "disabled" in _input(page, "teachers")


def _input(page: str, slug: str) -> str:
    """The radio button of a profile."""
    return next(
        tag for tag in page.split("<input")[1:] if f'value="{slug}"' in tag.split(">")[0]
    ).split(">")[0]


def test_link_with_a_full_profile_says_why_not(full: Hub) -> None:
    for query in ({"profile": "one-gpu"}, {"opt-profile": "one-gpu"}):
        page = full.login("late").refused_link(**query)
        assert page.status_code == 503
        assert ALL_TAKEN in unescape(page.text)


def test_pending_page_says_why_not(full: Hub) -> None:
    student = full.login("late")
    student.refused_form({"profile": "one-gpu"})
    page = student.pending_page()
    assert page.status_code == 503
    assert ALL_TAKEN in unescape(page.text)


def test_progress_stream_says_why_not(full: Hub) -> None:
    full.start_server("late", {"profile": "one-gpu"}, check=False)
    [event] = full.progress("late")
    assert event["failed"]
    assert event["message"].startswith(f"Spawn failed: {ALL_TAKEN}")
    assert event["html_message"].startswith(ALL_TAKEN)


def test_rest_says_why_not(full: Hub) -> None:
    answer = full.start_server("late", {"profile": "one-gpu"}, check=False)
    assert answer.status_code == 503
    assert answer.json()["message"].startswith(ALL_TAKEN)


def test_refusals_have_their_reason_in_the_metrics(full: Hub) -> None:
    full.start_server("late", {"profile": "one-gpu"}, check=False)
    metrics = full.api("GET", "../metrics").text
    assert 'reason="no-free-gpu",status="failure"' in metrics


NUL = "a\0b"
BAD = [
    {"profile": "nothing"},
    {"profile": "one-gpu", "extra": "1"},
    {"profile": "cpu", "image": "evil:latest"},
    {"image": "evil:latest"},
    {"profile": "cpu", "NVIDIA_VISIBLE_DEVICES": "all"},
    {"profile": "cpu", "environment": {"NVIDIA_VISIBLE_DEVICES": "all"}},
    {"profile": "cpu", "uid": 0},
    {"profile": ["one-gpu"]},
    {"profile": {"slug": "one-gpu"}},
    {"profile": 3},
    {"profile": None},
    {"profile": True},
    {"profile": NUL},
    {"profile": "🎓" * 1000},
    {"🎓": "🎓"},
    {"profile": [[[[[[{}]]]]]]},
    {"profile": "x" * 1_000_000},
    {str(n): "x" for n in range(100_000)},
]


@pytest.mark.parametrize("options", BAD, ids=lambda o: json.dumps(o)[:30])
def test_bad_options_are_refused_in_words_and_cost_nothing(
    hub: Hub, engine: Engine, options: dict[str, object]
) -> None:
    before = len(containers(engine))
    answer = hub.start_server("curious", options, check=False)
    assert answer.status_code in (400, 403), answer.text[:500]
    message = answer.json()["message"]
    assert message
    assert len(message) < 500
    assert len(containers(engine)) == before
    assert hub.running


def test_a_forbidden_profile_is_403_at_every_door(hub: Hub) -> None:
    assert hub.start_server("curious", {"profile": "teachers"}, check=False).status_code == 403
    student = hub.login("curious")
    page = student.refused_form({"profile": "teachers"})
    assert page.status_code == 403
    assert "open to other groups only" in unescape(page.text)
    assert student.refused_link(profile="teachers").status_code == 403


def test_junk_in_the_form_is_400(hub: Hub) -> None:
    student = hub.login("curious")
    for data in (
        {"profile": "nothing"},
        {"profile": "cpu", "runtime": "nvidia"},
        {"profile": "x" * 1_000_000},
        {"x" * 1_000_000: "y", "profile": "cpu"},
    ):
        assert student.refused_form(data).status_code == 400


def test_the_last_good_choice_survives_a_bad_one(hub: Hub) -> None:
    hub.start_server("curious", {"profile": "cpu"})
    hub.wait_ready("curious")
    hub.stop_server("curious")
    hub.wait_stopped("curious")
    assert hub.start_server("curious", {"profile": "nothing"}, check=False).status_code == 400
    hub.start_server("curious")
    hub.wait_ready("curious")
    server = hub.server("curious")
    assert server
    assert server["user_options"] == {"profile": "cpu"}
    hub.stop_server("curious")
    hub.wait_stopped("curious")


def test_odd_user_names_get_a_server(hub: Hub) -> None:
    for user in ("ünï-çødé", "x" * 200, "a.b@c-d_e"):
        hub.add_users(user)
        hub.start_server(user, {"profile": "cpu"})
        hub.wait_ready(user)
        hub.stop_server(user)
        hub.wait_stopped(user)
