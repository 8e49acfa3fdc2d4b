"""Images beside the profiles: every image with every profile, at every door; once for all.

``allowed_images`` as DockerSpawner has it: a dict, a list, ``"*"``, or a callable that answers for
each user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest

from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub
from ground.image import TINY_ALL
from ground.student import Student

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

USER = "noor"
CONFIG = """
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {
        "display_name": "Own image",
        "slug": "own",
        "spawner_override": {"image": c.DockerSpawner.image},
    },
    {"display_name": "CPU only", "slug": "cpu", "default": True},
]
# Every answer is the last word, however busy the machine is.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}
"""
LISTED = """
IMAGES = {"Tiny": c.DockerSpawner.image, "Again": "%s"}

def images(spawner):
    if spawner.user.name == "ada":
        return list(IMAGES.values())
    if spawner.user.name == "eve":
        return None
    return "*" if spawner.user.name == "any" else IMAGES

c.DockerSpawner.allowed_images = images
"""


@pytest.fixture(scope="module")
def hub(engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    config = CONFIG + LISTED % TINY_ALL
    with gpu_hub(tmp_path_factory.mktemp("images"), engine, tiny_image, config) as hub:
        hub.add_users(USER, "ada", "eve", "any")
        yield hub


@pytest.fixture(scope="module")
def student(hub: Hub) -> Student:
    return hub.login(USER)


def form(hub: Hub, student: Student, options: dict[str, str]) -> None:
    # The list is sent with every profile, also where it is hidden.
    assert student.post_form({"image": "Again", **options}).status_code == 302


def link(hub: Hub, student: Student, options: dict[str, str]) -> None:
    assert student.get_form(**options).status_code == 302


def rest(hub: Hub, student: Student, options: dict[str, str]) -> None:
    assert hub.start_server(student.user, options).status_code == 201


DOORS = [form, link, rest]


def end(hub: Hub, engine: Engine, user: str = USER) -> tuple[str, str, int]:
    """The image, the profile and the number of cards of the container that came; and its end."""
    hub.wait_ready(user)
    [row] = containers(engine)
    told = engine.client.inspect_container(row["Id"])["Config"]
    labels = told["Labels"]
    hub.stop_server(user)
    hub.wait_stopped(user)
    hub.wait(lambda: not containers(engine), "no container left")
    cards = [card for card in labels["gpuspawner.devices"].split(",") if card]
    return told["Image"], labels["gpuspawner.profile"], len(cards)


@pytest.mark.parametrize("door", DOORS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("key", ["Tiny", "Again"])
@pytest.mark.parametrize(("slug", "cards"), [("one-gpu", 1), ("cpu", 0)])
def test_every_image_with_every_profile(
    hub: Hub,
    engine: Engine,
    tiny_image: str,
    student: Student,
    slug: str,
    cards: int,
    key: str,
    door: Callable[[Hub, Student, dict[str, str]], None],
) -> None:
    door(hub, student, {"profile": slug, "image": key})
    image = {"Tiny": tiny_image, "Again": TINY_ALL}[key]
    assert end(hub, engine) == (image, slug, cards)


@pytest.mark.parametrize("door", DOORS, ids=lambda d: d.__name__)
def test_a_profile_with_an_image_of_its_own_has_that_one(
    hub: Hub,
    engine: Engine,
    tiny_image: str,
    student: Student,
    door: Callable[[Hub, Student, dict[str, str]], None],
) -> None:
    door(hub, student, {"profile": "own"})
    assert end(hub, engine) == (tiny_image, "own", 0)


def test_an_image_with_such_a_profile_is_refused_where_it_was_written(
    hub: Hub, engine: Engine, student: Student
) -> None:
    options = {"profile": "own", "image": "Again"}
    answer = hub.start_server(USER, options, check=False)
    assert answer.status_code == 400
    assert "There is no option 'image'" in answer.json()["message"]
    page = student.refused_link(**options)
    assert page.status_code == 400
    assert "There is no option 'image'" in unescape(page.text)
    assert not containers(engine)


def test_an_image_that_is_not_listed_is_refused_by_name(
    hub: Hub, engine: Engine, student: Student
) -> None:
    bad: list[dict[str, Any]] = [
        {"profile": "cpu", "image": "evil/image:1"},
        {"profile": "cpu", "image": TINY_ALL},  # a value, not a key
    ]
    for options in bad:
        words = f"can't be '{options['image']}'"
        answer = hub.start_server(USER, options, check=False)
        assert answer.status_code == 400
        assert words in answer.json()["message"]
        for page in (student.refused_form(options), student.refused_link(**options)):
            assert page.status_code == 400
            assert words in unescape(page.text)
    assert not containers(engine)


def test_the_last_image_is_preselected(hub: Hub, engine: Engine, student: Student) -> None:
    for key in ("Again", "Tiny", "Again"):
        rest(hub, student, {"profile": "cpu", "image": key})
        end(hub, engine)
        page = student.get_form().text
        assert f'<option value="{key}" selected>' in page
        assert page.count(" selected>") == 1
    # And taken where nothing is chosen.
    hub.start_server(USER)
    assert end(hub, engine)[0] == TINY_ALL


def test_a_callable_answers_for_each_user(hub: Hub, engine: Engine, tiny_image: str) -> None:
    ada, eve, anybody = hub.login("ada"), hub.login("eve"), hub.login("any")
    page = ada.get_form().text
    assert f'<option value="{tiny_image}" selected>' in page
    assert f'<option value="{TINY_ALL}">' in page
    rest(hub, ada, {"profile": "cpu", "image": TINY_ALL})
    assert end(hub, engine, "ada")[0] == TINY_ALL
    assert hub.start_server("ada", {"image": "Again"}, check=False).status_code == 400

    assert 'name="image"' not in eve.get_form().text
    assert hub.start_server("eve", {"image": "Again"}, check=False).status_code == 400
    rest(hub, eve, {"profile": "cpu"})
    assert end(hub, engine, "eve")[0] == tiny_image

    assert (
        '<input class="form-control" type="text" id="gpuspawner-image"' in anybody.get_form().text
    )
    rest(hub, anybody, {"profile": "one-gpu", "image": TINY_ALL})
    assert end(hub, engine, "any") == (TINY_ALL, "one-gpu", 1)
    for bad in ("a b", "-v", "{username}", "../x"):
        assert hub.start_server("any", {"image": bad}, check=False).status_code == 400
