"""The form as HTML: what is shown, what is disabled, what is preselected, what it would send."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.demands import demand, scene
from gpuspawner import messages
from gpuspawner.form import render
from gpuspawner.form_state import Offers, ProfileState, preselected, state_of
from gpuspawner.limits import Held
from gpuspawner.options import options_from_form, parse_options
from gpuspawner.profiles import DEFAULT_PROFILES, parse_profile_list
from gpuspawner.request import Card, Kept

DEFAULTS = parse_profile_list(DEFAULT_PROFILES)
FULL = ProfileState(free=0, total=8, disabled="All 8 GPUs are in use just now.")
EVIL = '"><script>alert(1)</script>{{7*7}}&'
OPTIONS = parse_profile_list(
    [
        {
            "display_name": "One GPU",
            "description": "For training.",
            "gpu": {"count": 1},
            "profile_options": {
                "image": {
                    "display_name": "Image",
                    "choices": {
                        "torch": {"display_name": "PyTorch"},
                        "jax": {"display_name": "JAX", "default": True},
                    },
                    "unlisted_choice": {"enabled": True, "display_name": "Its name"},
                },
                "note": {"display_name": "Note", "unlisted_choice": {"enabled": True}},
            },
        },
        {"display_name": "CPU", "profile_options": {"size": {"choices": {"s": {}, "l": {}}}}},
    ]
)


class Page(HTMLParser):
    """Just enough of a browser: the form's fields with what they would send."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.sent: dict[str, list[str]] = {}
        self._select = ""
        self._skip = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._skip = tag == "style"
        name, on = found.get("name") or "", "disabled" not in found
        if tag == "input" and on and (found["type"] == "text" or "checked" in found):
            self.sent[name] = [found.get("value") or ""]
        if tag == "select":
            self._select = name if on else ""
        first = self._select not in self.sent
        if tag == "option" and self._select and ("selected" in found or first):
            self.sent[self._select] = [found.get("value") or ""]

    def handle_endtag(self, tag: str) -> None:
        self._skip = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skip else data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def radios(self) -> dict[str | None, dict[str, str | None]]:
        return {a["value"]: a for a in self.all("input") if a["type"] == "radio"}


def html_of(
    profiles: Any = DEFAULTS.profiles,
    states: Mapping[str, ProfileState] = {},
    others: Any = (),
    **kwargs: Any,
) -> str:
    return render(Offers(tuple(profiles), tuple(others), states), **kwargs)


def page(*args: Any, **kwargs: Any) -> Page:
    return Page(html_of(*args, **kwargs))


def test_counts_and_reasons() -> None:
    shown = page(states={"one-gpu": ProfileState(free=3, total=8)})
    assert "3 of 8 GPUs free" in shown.text
    assert "disabled" not in shown.radios["one-gpu"]
    full = page(states={"one-gpu": FULL})
    assert "All 8 GPUs are in use just now." in full.text
    assert "0 of 8" not in full.text
    assert "disabled" in full.radios["one-gpu"]
    assert "disabled" not in full.radios["cpu"]


def test_it_can_be_used_with_keyboard_and_screen_reader() -> None:
    shown = page(OPTIONS.profiles, images={"A": "a", "B": "b"})
    ids = [a["id"] for _, a in shown.tags if "id" in a]
    assert len(ids) == len(set(ids))
    labelled = {a["for"] for a in shown.all("label")}
    fields = [a for tag, a in shown.tags if tag in ("input", "select")]
    assert fields
    assert {a["id"] for a in fields} == labelled
    for field in shown.radios.values():
        assert set((field["aria-describedby"] or "").split()) <= set(ids)
    assert shown.all("fieldset")
    assert shown.all("legend")
    assert not shown.all("script")


@pytest.mark.parametrize(
    ("last", "full", "expected"),
    [
        (None, [], "cpu"),
        (None, ["one-gpu"], "cpu"),
        (None, ["cpu"], "one-gpu"),
        ("one-gpu", [], "one-gpu"),
        ("one-gpu", ["one-gpu"], "cpu"),
        ("gone", [], "cpu"),
        ("one-gpu", ["one-gpu", "cpu"], None),
    ],
)
def test_never_a_failing_button(last: str | None, full: list[str], expected: str | None) -> None:
    states = dict.fromkeys(full, FULL)
    assert preselected(DEFAULTS.profiles, states, last) == expected
    shown = page(states=states, last={"profile": last} if last else None)
    checked = [slug for slug, a in shown.radios.items() if "checked" in a]
    assert checked == ([expected] if expected else [])


def test_the_admins_default_is_for_those_who_have_not_chosen() -> None:
    profiles = parse_profile_list(
        [{"display_name": "G", "gpu": {}, "default": True}, {"display_name": "C"}]
    ).profiles
    assert preselected(profiles, {}, None) == "g"
    assert preselected(profiles, {"g": FULL}, None) == "c"
    assert preselected(profiles, {}, "c") == "c"


def test_all_disabled_hides_the_button_and_says_so() -> None:
    html = html_of(DEFAULTS.profiles, {"one-gpu": FULL, "cpu": ProfileState(disabled="Closed.")})
    assert messages.all_disabled() in Page(html).text
    assert 'class="gpuspawner is-closed"' in html
    assert 'class="gpuspawner"' in html_of(DEFAULTS.profiles, {"one-gpu": FULL})


def test_nobodys_profile_is_told() -> None:
    assert "No profile on this hub is open to you yet." in page(()).text
    assert not page(()).radios


def test_no_form_where_there_is_nothing_to_choose() -> None:
    assert html_of(DEFAULTS.profiles[:1], {}) == ""
    assert html_of(DEFAULTS.profiles[:1], {}, images={"A": "a"}) == ""
    assert html_of(DEFAULTS.profiles[:1], {}, images={"A": "a", "B": "b"})
    assert html_of(DEFAULTS.profiles[:1], {}, images="*")
    assert html_of(OPTIONS.profiles[1:], {})


def test_everything_is_escaped() -> None:
    profiles = parse_profile_list(
        [
            {
                "display_name": EVIL,
                "slug": "a",
                "description": EVIL,
                "profile_options": {
                    "o": {
                        "display_name": EVIL,
                        "choices": {EVIL: {"display_name": EVIL}},
                        "unlisted_choice": {
                            "enabled": True,
                            "display_name": EVIL,
                            "display_name_in_choices": EVIL,
                        },
                    }
                },
            },
            {"display_name": "B"},
        ]
    ).profiles
    html = html_of(
        profiles,
        {"b": ProfileState(disabled=EVIL)},
        last={"profile": "a", "o--unlisted-choice": EVIL, "image": EVIL},
        images={EVIL: "x", "y": "y"},
        notice=EVIL,
    )
    assert "<script" not in html
    assert "49" not in html
    shown = Page(html)
    assert shown.text.count("<script>alert(1)</script>{{7*7}}") >= 7
    assert shown.sent["profile-option-a--o--unlisted-choice"] == [EVIL]


def test_what_the_form_sends_is_accepted() -> None:
    images = {"A": "a", "B": "b"}
    for last in (
        {},
        {"profile": "one-gpu", "image": "torch"},
        {"profile": "one-gpu", "image--unlisted-choice": "mine:1", "note--unlisted-choice": "x"},
        {"profile": "cpu", "size": "l", "image": "B"},
    ):
        sent = page(OPTIONS.profiles, last=last, images=images, image="b").sent
        choice = parse_options(
            options_from_form({"_xsrf": ["x"], **sent}), OPTIONS, user="u", allowed_images=images
        )
        assert last.items() <= choice.options.items()
        assert choice.profile.slug == last.get("profile", "cpu")
    assert page(OPTIONS.profiles, images=images, image="b").sent["image"] == ["B"]


def test_an_image_of_a_profiles_own_is_no_last_choice_from_the_list_of_all() -> None:
    """``image`` is a question of "One GPU" here, and a choice for "CPU" there."""
    images = {"jax": "hub/jax", "b": "hub/b"}
    for slug, chosen in (("one-gpu", "b"), ("cpu", "jax")):
        last = {"profile": slug, "image": "jax"}
        assert page(OPTIONS.profiles, last=last, images=images, image="b").sent["image"] == [chosen]


def test_a_notice_is_shown() -> None:
    assert "Demo: these GPUs are simulated." in page(notice="Demo: these GPUs are simulated.").text


def card(index: int, **kwargs: Any) -> Card:
    return Card(uuid=f"GPU-{index}", index=index, model="L4", memory_mib=24_576, **kwargs)


def has(cards: int) -> Held:
    return Held("ada", "other", "one-gpu", Fraction(cards))


def test_the_state_of_a_profile() -> None:
    cards = [card(0), card(1, load=Fraction(1)), card(2, unavailable="lost")]
    assert state_of(demand(count=0), scene(cards)) == ProfileState()
    one = state_of(demand(count=1), scene(cards))
    assert (one.count, one.disabled) == ("1 of 3 GPUs free", "")
    two = state_of(demand(count=2), scene(cards))
    assert (two.free, two.disabled) == (1, "1 GPU is free, this needs 2.")
    none = state_of(demand(count=1, min_memory_mib=48 * 1024), scene(cards))
    assert (none.count, none.disabled) == ("", "This machine has no GPU with 48 GB.")


def test_what_the_users_limit_forbids_is_disabled() -> None:
    cards = [card(0), card(1)]
    assert state_of(demand(count=1, limit=2), scene(cards, has(1))).disabled == ""
    assert state_of(demand(count=2, limit=0), scene(cards, has(5))).disabled == ""
    assert state_of(demand(count=0, limit=2), scene(cards, has(2))) == ProfileState()
    assert "at a time" in state_of(demand(count=2, limit=2), scene(cards, has(1))).disabled


def advised(state: ProfileState) -> str:
    return state.advice.partition(" ")[0]


def test_nobody_is_told_to_wait_for_what_will_not_come() -> None:
    """``It`` opens by itself, or ``Please`` choose another."""
    cards = [card(0), card(1, load=Fraction(1))]
    assert advised(state_of(demand(count=1), scene(cards))) == ""
    assert advised(state_of(demand(count=2), scene(cards))) == "It"
    assert advised(state_of(demand(count=3), scene(cards))) == "Please"
    assert advised(state_of(demand(models=("H100",)), scene(cards))) == "Please"
    for_others = card(0, kept=Kept("for staff", always=True))
    assert advised(state_of(demand(), scene([for_others]))) == "Please"
    assert advised(state_of(demand(), scene([]))) == "It"  # they may come back
    # One's own limit: the other server may be stopped, the limit itself stands.
    assert advised(state_of(demand(count=1, limit=1), scene(cards, has(1)))) == "It"
    assert advised(state_of(demand(count=2, limit=1), scene(cards))) == "Please"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from([EVIL]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
keys = st.sampled_from(["profile", "image", "image--unlisted-choice", "note", "size"])


@given(st.dictionaries(keys, junk | st.sampled_from(["one-gpu", "cpu", "torch", "l"])))
def test_any_stored_options_give_a_form_that_can_be_sent(last: dict[str, Any]) -> None:
    html = html_of(OPTIONS.profiles, {}, last=last)
    assert "<script" not in html
    assert Page(html).sent["profile"][0] in ("one-gpu", "cpu")


# -- an admin's template --------------------------------------------------------------------------

HOW_TO = Path(__file__).resolve().parents[1] / "docs/how-to/change-the-form.md"


def test_each_documented_block_can_be_changed(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (`[a-z`, ]+`) \|", HOW_TO.read_text(), re.MULTILINE)
    blocks = [name for row in rows for name in re.findall(r"[a-z]+", row)]
    assert len(blocks) == 9
    for block in blocks:
        (tmp_path / "gpuspawner_form.html").write_text(
            '{% extends "templates/gpuspawner_form.html" %}'
            f"{{% block {block} %}}[{block} {{{{ mine }}}}]{{{{ super() }}}}{{% endblock %}}"
        )
        html = html_of(
            images={"A": "a", "B": "b"}, folders=[str(tmp_path)], template_vars={"mine": "<b>"}
        )
        shown = html.count(f"[{block} &lt;b&gt;]")
        assert shown == (len(DEFAULTS.profiles) if block in ("profile", "description") else 1)


def test_a_template_knows_the_profile_and_its_state_and_cannot_take_our_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "gpuspawner_form.html").write_text(
        '{% extends "templates/gpuspawner_form.html" %}{% block profile %}'
        "[{{ profile.slug }} {{ state.free }} {{ state.count }} {{ state.disabled }}]{% endblock %}"
    )
    html = html_of(
        states={"one-gpu": FULL},
        folders=[str(tmp_path)],
        template_vars={"sections": (), "states": {}},
    )
    assert "[one-gpu 0 0 of 8 GPUs free All 8 GPUs are in use just now.]" in html


def test_only_a_page_that_can_ask_has_a_script() -> None:
    assert "<script" not in html_of()
    live = html_of(live_url='/hub/gpuspawner/profiles/"ada"')
    assert live.count("<script") == 1
    [root] = [a for tag, a in Page(live).tags if "data-live" in a]
    assert root["data-live"] == '/hub/gpuspawner/profiles/"ada"'
