"""jupyterhub-fancy-profiles as the spawn form, in a real browser on a real hub.

Its form is a script of its own; this shows that what it reads and what it sends fits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

import browser as web
from conftest import no_engine
from gpu_hub import containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub
from ground.image import TINY_ALL
from ground.machine import GroundError

pytest.importorskip("jupyterhub_fancy_profiles")
pytestmark = [pytest.mark.browser, pytest.mark.parametrize("engine", ["cdi"], indirect=True)]

CONFIG = """
c.GPUSpawner.profile_list = [
    {
        "display_name": "One GPU",
        "slug": "one-gpu",
        "description": "A whole GPU for you alone.",
        "gpu": {"count": 1},
        "profile_options": {
            "size": {
                "display_name": "Size",
                "choices": {
                    "s": {"display_name": "Small"},
                    "l": {
                        "display_name": "Large",
                        "spawner_override": {"environment": {"SIZE": "large"}},
                    },
                },
            },
            "course": {
                "display_name": "Course",
                "unlisted_choice": {
                    "enabled": True,
                    "display_name": "Course number",
                    "validation_regex": "[a-z]+",
                    "spawner_override": {"environment": {"COURSE": "{value}"}},
                },
            },
        },
    },
    {"display_name": "Five GPUs", "slug": "five", "gpu": {"count": 5}},
    {"display_name": "CPU only", "slug": "cpu", "default": True},
]
c.GPUSpawner.max_gpus_per_user = 8
c.DockerSpawner.allowed_images = {"Tiny": c.DockerSpawner.image, "Tiny again": "TINY_ALL"}
from jupyterhub_fancy_profiles import setup_ui
setup_ui(c)
import gpuspawner
gpuspawner.configure(c)
""".replace("TINY_ALL", TINY_ALL)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with web.chromium() as started:
            yield started
    except GroundError as error:
        no_engine(error)


@pytest.fixture(scope="module")
def hub(engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("fancy"), engine, tiny_image, CONFIG) as hub:
        hub.add_users("noor")
        yield hub


@pytest.fixture
def page(hub: Hub, browser: Browser) -> Iterator[Page]:
    context = web.new_context(browser)
    page = context.new_page()
    page.goto(f"{hub.url}/hub/login?next=%2Fhub%2Fspawn")
    page.get_by_label("Username:").fill("noor")
    page.get_by_label("Password:").fill(hub.password)
    page.keyboard.press("Enter")
    yield page
    context.close()


def test_its_form_starts_what_was_chosen(hub: Hub, engine: Engine, page: Page) -> None:
    page.get_by_role("heading", name="One GPU", exact=True).wait_for()
    page.get_by_text("A whole GPU for you alone.").wait_for()
    page.get_by_text("4 of 4 GPUs free").first.wait_for()
    assert page.get_by_role("radio", name="CPU only").is_checked()
    page.get_by_role("heading", name="One GPU", exact=True).click()
    card = page.locator("#profile-one-gpu")
    for question, answer in (("Size", "Large"), ("Image", "Tiny again")):
        card.get_by_label(question, exact=True).click()
        page.get_by_text(answer, exact=True).last.click()
    card.get_by_role("combobox", name="Course number").fill("ml")
    page.get_by_role("button", name="Start", exact=True).click()
    server = hub.wait_ready("noor")
    assert server["user_options"] == {
        "profile": "one-gpu",
        "size": "l",
        "course--unlisted-choice": "ml",
        "image": "Tiny again",
    }
    env = inside(hub, "noor")["env"]
    assert (env["SIZE"], env["COURSE"]) == ("large", "ml")
    assert len(env["GPUSPAWNER_DEVICES"].split(",")) == 1
    hub.stop_server("noor")
    hub.wait_stopped("noor")
    hub.wait(lambda: not containers(engine), "no container left")


def test_what_is_not_free_says_so_and_is_refused_in_words(hub: Hub, page: Page) -> None:
    page.get_by_role("heading", name="Five GPUs").click()
    page.get_by_role("button", name="Start", exact=True).click()
    alert = page.locator(".alert-danger, .spawn-error-msg").first
    alert.wait_for()
    assert "GPU" in alert.inner_text()
    assert hub.server("noor") is None
