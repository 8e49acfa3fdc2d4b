"""Which choice a start takes, door by door: the one it names, else the stored, else the default.

On both hubs: JupyterHub 5 and 6 hand options over in ways of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from gpu_hub import CONFIG as BASE
from gpu_hub import containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub
from ground.student import Student

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

PLAIN = {"profile": "plain"}
LARGE = {"profile": "teachers", "size": "l"}
NOTED = {**LARGE, "course--unlisted-choice": "a b & c=ü"}
TEACHERS = """
    {
        "display_name": "Teachers",
        "slug": "teachers",
        "groups": ["teachers"],
        "profile_options": {
            "size": {
                "choices": {
                    "s": {"spawner_override": {"mem_limit": "64M"}},
                    "l": {"spawner_override": {"mem_limit": "128M"}},
                },
            },
            "course": {
                "unlisted_choice": {
                    "enabled": True,
                    "spawner_override": {"environment": {"COURSE": "{value}"}},
                },
            },
        },
    },
"""
CONFIG = """
c.GPUSpawner.profile_list = [%s
    {"display_name": "Plain", "slug": "plain", "default": True},
]
# Every answer is the last word, however busy the machine is.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}
"""
USER = "noor"


@pytest.fixture(scope="module", params=["hub6", "hub5"])
def hub(
    request: pytest.FixtureRequest,
    engine: Engine,
    tiny_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Hub]:
    other = {"python": request.getfixturevalue("python5")} if request.param == "hub5" else {}
    folder = tmp_path_factory.mktemp("choices")
    with gpu_hub(folder, engine, tiny_image, CONFIG % TEACHERS, **other) as hub:
        hub.add_users(USER, "admin")
        hub.api("POST", "groups/teachers", json={})
        yield hub


@pytest.fixture
def teacher(hub: Hub, engine: Engine) -> Iterator[Student]:
    """A teacher without a server and without a last choice of an earlier test."""
    join(hub)
    for name in ("", "lab", "put"):
        if hub.server(USER, name):  # left by a test that failed
            end(hub, name)
    hub.start_server(USER, PLAIN)
    end(hub)
    yield hub.login(USER)
    hub.wait(lambda: not containers(engine), "no container left")


def join(hub: Hub) -> None:
    hub.api("POST", "groups/teachers/users", json={"users": [USER]})


def leave(hub: Hub) -> None:
    hub.api("DELETE", "groups/teachers/users", json={"users": [USER]})


def end(hub: Hub, name: str = "") -> dict[str, str]:
    """Wait for the server and end it; what it was started with."""
    options: dict[str, str] = hub.wait_ready(USER, name)["user_options"]
    hub.stop_server(USER, name)
    hub.wait_stopped(USER, name)
    return options


def started(hub: Hub, options: dict[str, Any] | None = None, name: str = "") -> dict[str, str]:
    hub.start_server(USER, options, name)
    return end(hub, name)


def refused(hub: Hub, options: dict[str, Any] | None = None, name: str = "") -> tuple[int, str]:
    answer = hub.start_server(USER, options, name, check=False)
    assert hub.server(USER, name) is None
    return answer.status_code, answer.json()["message"]


# -- what was named --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "lab"])
@pytest.mark.parametrize("prefix", ["", "opt-"])
def test_a_link_carries_a_profile_its_options_and_texts(
    hub: Hub, teacher: Student, prefix: str, name: str
) -> None:
    query = {f"{prefix}{key}": value for key, value in NOTED.items()}
    assert teacher.get_form(name, **query).status_code == 302
    hub.wait_ready(USER, name)
    assert inside(hub, USER, name)["env"]["COURSE"] == "a b & c=ü"
    assert end(hub, name) == NOTED


def test_a_form_carries_the_same(hub: Hub, teacher: Student) -> None:
    form = {
        "profile": "teachers",
        "profile-option-teachers--size": "l",
        "profile-option-teachers--course--unlisted-choice": "a b & c=ü",
    }
    assert teacher.post_form(form).status_code == 302
    assert end(hub) == NOTED


def test_a_link_with_a_slip_is_refused_in_words(hub: Hub, teacher: Student) -> None:
    for query, words in (
        ({"profile": "teachers", "size": "xl"}, "can't be 'xl'. You can choose from"),
        ({"profile": "teachers", "colour": "red"}, "There is no option 'colour'."),
        ({"profile": "plain", "size": "l"}, "There is no option 'size'."),
        ({"profile": "nothing"}, "There is no profile 'nothing'."),
    ):
        page = teacher.refused_link(**query)
        assert page.status_code == 400
        assert words in unescape(page.text)
    assert hub.server(USER) is None


@pytest.mark.parametrize("door", ["form", "link"])
def test_an_admin_starts_for_a_user_what_the_user_may_have(
    hub: Hub, teacher: Student, door: str
) -> None:
    admin = hub.login("admin")

    def ask(profile: str) -> int:
        if door == "link":
            return admin.get(
                f"/hub/spawn/{USER}", params={"profile": profile}, allow_redirects=False
            ).status_code
        data = {"profile": profile}
        return admin.post(f"/hub/spawn/{USER}", data, allow_redirects=False).status_code

    assert 'value="teachers"' in admin.get(f"/hub/spawn/{USER}").text
    assert ask("teachers") == 302
    assert end(hub)["profile"] == "teachers"
    leave(hub)
    assert ask("teachers") == 403
    hub.api("POST", "groups/teachers/users", json={"users": ["admin"]})
    assert ask("teachers") == 403, "the admin's own groups don't count"
    hub.api("DELETE", "groups/teachers/users", json={"users": ["admin"]})


# -- groups ----------------------------------------------------------------------------------------


def test_a_change_of_groups_counts_at_the_next_start(hub: Hub, teacher: Student) -> None:
    assert started(hub, LARGE) == LARGE
    hub.start_server(USER, LARGE)
    leave(hub)
    # A running server is left alone.
    assert end(hub) == LARGE
    for name in ("", "lab"):
        assert refused(hub, LARGE, name)[0] == 403
    assert teacher.refused_form({"profile": "teachers"}).status_code == 403
    page = teacher.refused_link(profile="teachers")
    assert page.status_code == 403
    assert 'value="plain"' in page.text, "a form, though there is one profile to choose"
    assert hub.server(USER) is None
    join(hub)
    assert started(hub, LARGE) == LARGE
    assert started(hub, LARGE, "lab") == LARGE


# -- what was stored -------------------------------------------------------------------------------


def test_without_a_choice_the_last_is_taken_and_before_any_the_default(
    hub: Hub, teacher: Student
) -> None:
    hub.add_users("new")
    hub.start_server("new")
    assert hub.wait_ready("new")["user_options"] == PLAIN
    hub.stop_server("new")
    hub.wait_stopped("new")
    assert started(hub, LARGE) == LARGE
    assert started(hub) == LARGE
    # Each server has a last choice of its own.
    assert started(hub, PLAIN, "lab") == PLAIN
    assert started(hub) == LARGE
    assert started(hub, None, "lab") == PLAIN
    # What was refused is no last choice.
    assert refused(hub, {"profile": "nothing"})[0] == 400
    assert started(hub) == LARGE


def test_a_last_choice_that_is_not_open_any_more_locks_nobody_out(
    hub: Hub, teacher: Student
) -> None:
    assert started(hub, LARGE) == LARGE
    leave(hub)
    assert refused(hub, LARGE)[0] == 403
    # Nothing was sent now, and this user has one profile only, so that no form is shown.
    answer = teacher.get_form()
    assert answer.status_code == 200, answer.text[:300]
    assert end(hub) == PLAIN
    join(hub)
    assert started(hub, LARGE) == LARGE
    leave(hub)
    assert started(hub) == PLAIN
    assert refused(hub, LARGE)[0] == 403


def test_a_restart_keeps_the_last_choice_and_a_profile_that_is_gone_gives_way(
    hub: Hub, teacher: Student
) -> None:
    assert started(hub, NOTED) == NOTED
    hub.restart()
    page = hub.login(USER).get_form().content.decode()
    assert 'value="a b &amp; c=ü"' in page
    assert started(hub) == NOTED
    hub.set_config(BASE + CONFIG % "")
    hub.restart()
    assert refused(hub, NOTED)[0] == 400
    assert started(hub) == PLAIN
    hub.set_config(BASE + CONFIG % TEACHERS)
    hub.restart()


def test_patch_stores_unread_and_the_start_checks(hub: Hub, teacher: Student) -> None:
    version = hub.api("GET", "info").json()["version"]
    path = f"users/{USER}/servers/"

    def patch(options: Any) -> int:
        return hub.api("PATCH", path, check=False, json={"user_options": options}).status_code

    if version.startswith("5."):
        assert patch(LARGE) in (403, 404, 405), "JupyterHub 5 has no PATCH of a server"
        return
    assert started(hub, PLAIN) == PLAIN
    assert patch(LARGE) == 200
    assert started(hub) == LARGE
    for bad, status in (
        ({"profile": "nothing"}, 400),
        ({"uid": 0}, 400),
        (PLAIN | {"x": "y"}, 400),
    ):
        assert patch(bad) == 200
        assert refused(hub)[0] == status
        assert started(hub) == LARGE, "the last good choice is back"
    assert patch(LARGE) == 200
    assert started(hub, PLAIN) == PLAIN, "what is sent counts"
    assert patch(LARGE) == 200
    leave(hub)
    assert refused(hub)[0] == 403
    assert started(hub) == PLAIN
    hub.start_server(USER, PLAIN)
    assert patch(LARGE) == 400, "not while it runs"
    assert end(hub) == PLAIN
    assert hub.api("PUT", f"users/{USER}/servers/put", json={"user_options": PLAIN}).ok
    assert started(hub, None, "put") == PLAIN
