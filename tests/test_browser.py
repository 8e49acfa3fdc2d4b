"""Students at the hub's pages, in a real browser with real notebook servers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

import browser as web
from conftest import no_engine
from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub
from ground.machine import GroundError

# One kind is enough here; on this one /dev shows what was given.
pytestmark = [pytest.mark.browser, pytest.mark.parametrize("engine", ["cdi"], indirect=True)]

#: Where set, the pictures of the documentation are taken anew.
UPDATE = "GPUSPAWNER_UPDATE_IMAGES"
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
TWO_CARDS = """
c.GPUPool.inventory = {"simulated": 2}
"""
PROFILES = """
c.GPUSpawner.max_gpus_per_user = 4
c.GPUSpawner.http_timeout = 600
BASE = [
    {
        "display_name": "One GPU",
        "slug": "one-gpu",
        "description": "A whole GPU for you alone.",
        "gpu": {"count": 1},
        "profile_options": {
            "memory": {
                "display_name": "Main memory",
                "choices": {
                    "16g": {"display_name": "16 GB", "spawner_override": {"mem_limit": "16G"}},
                    "32g": {"display_name": "32 GB", "spawner_override": {"mem_limit": "32G"}},
                },
            },
        },
    },
    {
        "display_name": "Three GPUs",
        "slug": "three-gpus",
        "description": "For work that is split over three cards.",
        "gpu": {"count": 3},
    },
    {
        "display_name": "Never ready",
        "slug": "never-ready",
        "description": "One GPU, and a server that never answers.",
        "gpu": {"count": 1},
        "spawner_override": {"environment": {"TINY_START_SECONDS": "3600"}},
        "users": ["waiting"],
    },
    {
        "display_name": "Without a GPU",
        "slug": "cpu",
        "description": "For writing, reading and lighter work.",
    },
]
# What the documentation's pictures show.
SHOWN = [
    {
        "display_name": "Half a GPU",
        "description": "Enough for exercises and small models.",
        "gpu": {"count": 1, "share": "1/2"},
    },
    {
        "display_name": "One GPU",
        "description": "A whole GPU for you alone.",
        "gpu": {"count": 1},
    },
    {
        "display_name": "Two linked GPUs",
        "description": "For training that is split over both.",
        "gpu": {"count": 2, "linked": "prefer"},
    },
    {
        "display_name": "Without a GPU",
        "description": "For writing, reading and lighter work.",
    },
]
GROUPED = [
    *SHOWN,
    {
        "display_name": "Four GPUs",
        "description": "For the research group's long runs.",
        "gpu": {"count": 4},
        "groups": ["research"],
    },
]
LONG = "Maschinelles-Lernen-Fortgeschrittenenpraktikum-Wintersemester"
MANY = [
    {
        "display_name": f"{LONG} {number} \u0645\u0631\u062d\u0628\u0627",
        "slug": f"many-{number}",
        "description": LONG.lower() * 3,
        "gpu": {"count": number % 3, **({"share": "1/2"} if number % 3 == 1 else {})},
        **({"groups": ["others"]} if number >= 30 else {}),
    }
    for number in range(36)
]
OF_USER = {"newcomer": SHOWN, "nothing-else": SHOWN[:3], "grouped": GROUPED, "many": MANY}
c.GPUSpawner.profile_list = lambda spawner: OF_USER.get(spawner.user.name, BASE)
import gpuspawner
gpuspawner.configure(c)
"""
FACTS = (
    "import json, os; print(json.dumps([os.environ['GPUSPAWNER_DEVICES'], os.getuid(), "
    "sorted(n for n in os.listdir('/dev') if n.startswith('nvidia'))]))"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        started = web.chromium()
        with started as browser:
            yield browser
    except GroundError as error:
        no_engine(error)


@pytest.fixture
def person(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page of another person, with a browser's settings of their own."""
    contexts = []

    def open_page(**kwargs: Any) -> Page:
        contexts.append(web.new_context(browser, **kwargs))
        return contexts[-1].new_page()

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def lab_hub(engine: Engine, notebook_image: str, tmp_path: Path) -> Iterator[Hub]:
    with gpu_hub(tmp_path, engine, notebook_image, TWO_CARDS) as hub:
        yield hub
        engine.remove_containers()


@pytest.fixture(scope="module")
def shared_form_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("form"), engine, tiny_image, PROFILES) as hub:
        hub.add_users("holder1", "holder2", "student", "waiting", "newcomer")
        yield hub


@pytest.fixture
def form_hub(shared_form_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_form_hub
    for user in ("holder1", "holder2", "student", "waiting"):
        for name in ("", "a", "b"):
            if shared_form_hub.server(user, name) is not None:
                shared_form_hub.stop_server(user, name)
                shared_form_hub.wait_stopped(user, name)
    shared_form_hub.wait(lambda: not containers(engine), "no container left")


@pytest.fixture
def partly_taken(form_hub: Hub) -> Hub:
    """Two of four cards are free: too few for three."""
    for holder in ("holder1", "holder2"):
        form_hub.start_server(holder, {"profile": "one-gpu"})
        form_hub.wait_ready(holder)
    return form_hub


@pytest.fixture
def full(form_hub: Hub) -> Hub:
    for holder, profile in (("holder1", "one-gpu"), ("holder2", "three-gpus")):
        form_hub.start_server(holder, {"profile": profile})
        form_hub.wait_ready(holder)
    return form_hub


# -- real notebook servers ----------------------------------------------------------------------


def test_two_students_work_on_a_card_each_and_a_third_is_told_so(
    lab_hub: Hub, engine: Engine, person: Callable[..., Page]
) -> None:
    third = person()
    web.log_in(third, lab_hub, "third")  # the page is open before the cards are taken
    expect(web.form(third)).to_contain_text("2 of 2 GPUs free")

    seen = []
    for user in ("first", "second"):
        page = person()
        web.log_in(page, lab_hub, user)
        web.choose(page, "One GPU")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/hub/spawn-pending/{user}*")
        assert _progress(page) > 0
        page.wait_for_url(f"**/user/{user}/lab*")
        seen.append(json.loads(web.run_in_notebook(page, FACTS)))
    (one, uid_one, dev_one), (two, uid_two, dev_two) = seen
    assert {one, two} == set(engine.uuids[:2])
    assert (uid_one, uid_two) == (1000, 1000)
    assert dev_one == [f"nvidia{engine.uuids.index(one)}"]
    assert dev_two == [f"nvidia{engine.uuids.index(two)}"]

    web.choose(third, "One GPU")
    third.keyboard.press("Enter")
    refusal = third.locator(".spawn-error-msg")
    expect(refusal).to_contain_text(
        "Both GPUs are in use just now. You can start without a GPU, or try again in a few "
        "minutes. Your files are safe."
    )
    expect(web.radio(third, "One GPU")).to_be_disabled()
    web.choose(third, "Without a GPU")
    third.keyboard.press("Enter")
    third.wait_for_url("**/user/third/lab*")
    devices, uid, dev = json.loads(web.run_in_notebook(third, FACTS))
    assert (devices, uid, dev) == ("", 1000, [])


def _progress(page: Page) -> int:
    """The pending page's bar, once it has moved."""
    moved = page.locator('#progress-bar:not([aria-valuenow="0"])')
    moved.wait_for()
    return int(moved.get_attribute("aria-valuenow") or 0)


# -- the pending page ---------------------------------------------------------------------------


def _start_never_ready(page: Page, hub: Hub) -> None:
    web.log_in(page, hub, "waiting")
    web.choose(page, "Never ready")
    page.keyboard.press("Enter")
    page.wait_for_url("**/hub/spawn-pending/waiting*")
    expect(page.locator("#progress-message")).to_have_text("Starting your server")


def test_reload_and_going_back_keep_the_one_server(
    form_hub: Hub, engine: Engine, person: Callable[..., Page]
) -> None:
    page = person()
    _start_never_ready(page, form_hub)
    page.reload()
    expect(page.locator("#progress-message")).to_have_text("Starting your server")
    page.go_back()
    page.goto(f"{form_hub.url}/hub/spawn")
    page.wait_for_url("**/hub/spawn-pending/waiting*")
    expect(page.locator("#progress-message")).to_have_text("Starting your server")
    assert len(containers(engine)) == 1


def test_stop_on_the_pending_page_gives_the_card_back(
    form_hub: Hub, engine: Engine, person: Callable[..., Page]
) -> None:
    page = person()
    _start_never_ready(page, form_hub)
    page.get_by_role("button", name="Stop Server").click()
    form_hub.wait_stopped("waiting")
    form_hub.wait(lambda: not containers(engine), "no container left")
    page.goto(f"{form_hub.url}/hub/spawn")
    expect(web.form(page)).to_contain_text("4 of 4 GPUs free")


# -- the form -----------------------------------------------------------------------------------


def test_a_profile_without_room_cannot_be_chosen(
    partly_taken: Hub, person: Callable[..., Page]
) -> None:
    page = person()
    web.log_in(page, partly_taken, "student")
    three = web.radio(page, "Three GPUs")
    expect(three).to_be_disabled()
    expect(three).to_have_accessible_description(
        "3 GPUs · A100 · 40 GB each For work that is split over three cards. "
        "2 GPUs are free, this needs 3."
    )
    page.get_by_text("Three GPUs", exact=True).click(force=True)
    expect(three).not_to_be_checked()
    reached = []
    web.tab_to(page, web.form(page).locator("input[type=radio]:checked"))
    for _ in range(3):
        page.keyboard.press("ArrowDown")
        reached.append(page.evaluate("document.activeElement.value"))
    assert set(reached) == {"one-gpu", "cpu"}


def test_keyboard_goes_from_profile_to_its_question_to_start(
    partly_taken: Hub, person: Callable[..., Page]
) -> None:
    page = person()
    web.log_in(page, partly_taken, "student")
    web.choose(page, "One GPU")
    page.keyboard.press("Tab")
    memory = web.form(page).get_by_label("Main memory")
    expect(memory).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(memory).to_have_value("32g")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Start")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/user/student/**")
    chosen = partly_taken.wait_ready("student")["user_options"]
    assert chosen == {"profile": "one-gpu", "memory": "32g"}


def _serious(page: Page) -> list[tuple[str, str]]:
    """What axe finds in the form that keeps people from using it."""
    found = Axe().run(page, context=".gpuspawner").response["violations"]
    return [(f["id"], f["help"]) for f in found if f["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1100])
def test_form_is_accessible_at_every_width_and_theme(
    partly_taken: Hub, person: Callable[..., Page], theme: str, width: int
) -> None:
    page = person(color_scheme=theme, viewport={"width": width, "height": 800})
    web.log_in(page, partly_taken, "student")
    assert page.evaluate("document.documentElement.dataset.bsTheme || 'light'") == theme
    assert _serious(page) == []
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    card = web.form(page).locator(".gpuspawner-card").first
    brightness = card.evaluate(
        "e => getComputedStyle(e).backgroundColor.match(/[\\d.]+/g).slice(0, 3)"
        ".reduce((sum, n) => sum + Number(n), 0) / 3"
    )
    assert (brightness < 128) == (theme == "dark")


# -- the form that lies open --------------------------------------------------------------------


def _look_again(page: Page) -> None:
    """What an open page does when it is turned to again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_an_open_form_follows_what_happens_and_keeps_what_was_chosen(
    partly_taken: Hub, person: Callable[..., Page]
) -> None:
    page = person()
    web.log_in(page, partly_taken, "student")
    web.choose(page, "One GPU")
    one, said = web.radio(page, "One GPU"), web.form(page).get_by_role("status")
    memory = web.form(page).get_by_label("Main memory")
    memory.select_option("32g")
    one.focus()
    expect(said).to_be_empty()
    for name in ("a", "b"):
        partly_taken.start_server("holder2", {"profile": "one-gpu"}, name=name)
        partly_taken.wait_ready("holder2", name)

    # By itself, without anything that the user does.
    expect(web.form(page)).to_contain_text("All 4 GPUs are in use just now.")
    expect(said).to_contain_text("One GPU: All 4 GPUs are in use just now. It opens here by itself")
    expect(one).to_be_checked()
    expect(one).to_be_focused()
    expect(memory).to_have_value("32g")
    start = page.get_by_role("button", name="Start")
    expect(start).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Enter")
    expect(said).to_contain_text("One GPU: All 4 GPUs are in use just now.")
    assert page.url.endswith("/hub/spawn")
    assert partly_taken.server("student") is None

    web.radio(page, "Without a GPU").check()
    expect(said).to_be_empty()
    expect(one).to_be_disabled()
    expect(start).not_to_have_attribute("aria-disabled", "true")

    for name in ("a", "b"):
        partly_taken.stop_server("holder2", name=name)
        partly_taken.wait_stopped("holder2", name)

    def opened() -> bool:
        _look_again(page)
        return web.form(page).get_by_text("2 of 4 GPUs free").count() > 0

    partly_taken.wait(opened, "two cards are free again")
    expect(web.radio(page, "Without a GPU")).to_be_checked()
    web.choose(page, "One GPU")
    expect(memory).to_have_value("32g")
    page.keyboard.press("Enter")
    page.wait_for_url("**/user/student/**")
    chosen = partly_taken.wait_ready("student")["user_options"]
    assert chosen == {"profile": "one-gpu", "memory": "32g"}


def test_an_open_form_gives_up_where_it_may_not_ask_and_goes_on_after_a_fault(
    form_hub: Hub, person: Callable[..., Page]
) -> None:
    page = person()
    asked: list[str] = []
    answers = [503, 200, 404]

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        status = answers[len(asked) - 1]
        told = {"profiles": {"cpu": {"disabled": ""}}, "selected": "cpu"}
        route.fulfill(status=status, json=told if status == 200 else {})

    page.route("**/hub/gpuspawner/profiles/*", answer)
    web.log_in(page, form_hub, "asker")
    one = web.radio(page, "One GPU")
    for count in (1, 2, 3):
        with page.expect_response("**/hub/gpuspawner/profiles/*"):
            _look_again(page)
        assert len(asked) == count
        if count == 1:
            expect(one).to_be_enabled()
        if count == 2:  # that profile is not named any more
            expect(one).to_be_disabled()
            expect(web.form(page)).to_contain_text("This is not offered any more.")
    _look_again(page)
    page.evaluate("new Promise(done => setTimeout(done, 0))")
    assert len(asked) == 3
    expect(web.radio(page, "Without a GPU")).to_be_checked()


#: Notes down when the form's script means to ask again, without its jitter.
NOTED = """
window.waits = [];
Math.random = () => 0.5;
const later = window.setTimeout;
window.setTimeout = (call, wait, ...rest) => {
  if (call.name === "look") window.waits.push(wait);
  return later(call, wait, ...rest);
};
"""


def test_an_open_form_asks_ever_more_rarely_while_it_gets_no_answer(
    form_hub: Hub, person: Callable[..., Page]
) -> None:
    page = person()
    page.add_init_script(NOTED)
    status = 503
    page.route(
        "**/hub/gpuspawner/profiles/*",
        lambda route: route.fulfill(status=status, json={"profiles": {}, "selected": "cpu"}),
    )
    web.log_in(page, form_hub, "asker")
    first = page.evaluate("waits[0]")
    assert first == 1000 * int(web.form(page).get_attribute("data-seconds") or 0) > 0
    expected = [first]
    for factor in (2, 4, 8, 16, 32, 64):
        expected.append(min(factor * first, 300_000))
        _look_again(page)
        page.wait_for_function(f"waits.length === {len(expected)}")
    assert expected[-2:] == [300_000, 300_000]  # else more steps belong above
    status = 200
    _look_again(page)
    page.wait_for_function(f"waits.length === {len(expected) + 1}")
    assert page.evaluate("waits") == [*expected, first]


def test_with_forced_colours_what_is_chosen_and_what_is_closed_can_be_told_apart(
    partly_taken: Hub, person: Callable[..., Page]
) -> None:
    page = person(forced_colors="active")
    web.log_in(page, partly_taken, "student")
    web.choose(page, "One GPU")
    borders = {}
    for name in ("One GPU", "Three GPUs", "Without a GPU"):
        card = (
            web.form(page)
            .locator("[data-profile]")
            .filter(has=page.get_by_role("radio", name=name, exact=True))
        )
        style = "card => (({borderTopWidth, borderTopStyle}) => [borderTopWidth, borderTopStyle])"
        borders[name] = card.evaluate(f"{style}(getComputedStyle(card))")
        # Words tell it too, not the look alone.
        assert ("2 GPUs are free, this needs 3." in card.inner_text()) == (name == "Three GPUs")
    assert borders == {
        "One GPU": ["3px", "solid"],
        "Three GPUs": ["1px", "dashed"],
        "Without a GPU": ["1px", "solid"],
    }
    assert _serious(page) == []


def test_without_scripts_the_form_is_sent_as_it_is(
    partly_taken: Hub, person: Callable[..., Page]
) -> None:
    page = person(java_script_enabled=False)
    web.log_in(page, partly_taken, "student")
    web.radio(page, "One GPU").check()
    web.form(page).get_by_label("Main memory").select_option("32g")
    page.get_by_role("button", name="Start").click()
    chosen = partly_taken.wait_ready("student")["user_options"]
    assert chosen == {"profile": "one-gpu", "memory": "32g"}


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
def test_many_profiles_with_long_names_fit_a_phone(
    form_hub: Hub, person: Callable[..., Page], direction: str
) -> None:
    page = person(viewport={"width": 320, "height": 640})
    web.log_in(page, form_hub, "many")
    page.evaluate(f"document.documentElement.dir = '{direction}'")
    headings = [h.strip() for h in web.form(page).locator("legend").all_inner_texts()]
    assert headings == [
        "What would you like to start?", "Without a GPU", "Part of a GPU", "Whole GPUs",
    ]  # fmt: skip
    part = web.form(page).get_by_role("group", name="Part of a GPU")
    assert part.get_by_role("radio").count() == 10
    others = web.form(page).get_by_text("6 more, open to other groups only")
    assert web.form(page).get_by_role("radio").count() == 30
    others.click()
    expect(web.form(page).get_by_role("radio")).to_have_count(36)
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    assert _serious(page) == []


# -- pictures -----------------------------------------------------------------------------------


def test_picture_of_the_form(
    partly_taken: Hub, person: Callable[..., Page], tmp_path: Path
) -> None:
    page = person(**_CAMERA)
    web.log_in(page, partly_taken, "newcomer")
    expect(web.form(page)).to_contain_text("2 of 4 GPUs free")
    expect(web.form(page)).to_contain_text("1/2 of a GPU · A100 · about 20 GB, shared")
    _take(page, tmp_path, "form.png")

    page = person(**{**_CAMERA, "color_scheme": "dark"})
    web.log_in(page, partly_taken, "newcomer")
    assert page.evaluate("document.documentElement.dataset.bsTheme") == "dark"
    _take(page, tmp_path, "form-dark.png")

    page = person(**{**_CAMERA, "viewport": {"width": 360, "height": 640}})
    web.log_in(page, partly_taken, "newcomer")
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    _take(page, tmp_path, "form-phone.png")


def test_picture_of_the_form_when_all_is_free(
    form_hub: Hub, person: Callable[..., Page], tmp_path: Path
) -> None:
    page = person(**_CAMERA)
    web.log_in(page, form_hub, "newcomer")
    expect(web.form(page)).to_contain_text("4 of 4 GPUs free")
    _take(page, tmp_path, "form-free.png")

    page = person(**_CAMERA)
    web.log_in(page, form_hub, "grouped")
    four = web.radio(page, "Four GPUs")
    expect(four).to_be_disabled()
    expect(four).to_have_accessible_description(
        "For the research group's long runs. Open to other groups only."
    )
    _take(page, tmp_path, "form-groups.png")


def test_picture_of_the_form_when_all_is_taken(
    full: Hub, person: Callable[..., Page], tmp_path: Path
) -> None:
    page = person(**_CAMERA)
    web.log_in(page, full, "newcomer")
    expect(web.form(page)).to_contain_text("All 4 GPUs are in use just now.")
    expect(web.radio(page, "Without a GPU")).to_be_checked()
    _take(page, tmp_path, "form-full.png")

    page = person()
    web.log_in(page, full, "nothing-else")
    expect(web.form(page).locator("input:checked")).to_have_count(0)
    expect(web.form(page).get_by_text("Nothing can be started just now.")).to_be_visible()
    expect(page.get_by_role("button", name="Start")).to_have_count(0)
    assert _serious(page) == []


_CAMERA: dict[str, Any] = {
    "viewport": {"width": 900, "height": 500},
    "device_scale_factor": 2,
    "color_scheme": "light",
    "reduced_motion": "reduce",
}


def _take(page: Page, folder: Path, name: str) -> None:
    assert _serious(page) == []
    page.mouse.move(0, 0)
    picture = page.screenshot(path=folder / name, full_page=True, animations="disabled")
    assert picture.startswith(b"\x89PNG")
    if os.environ.get(UPDATE):
        IMAGES.mkdir(parents=True, exist_ok=True)
        (IMAGES / name).write_bytes(picture)
