"""A form made for KubeSpawner in place of ours: what it is told, and what it sends back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from traitlets.config import Config

from gpuspawner import configure
from gpuspawner.form_state import Offers, ProfileState
from gpuspawner.kubespawner_form import kube_list, render_foreign
from gpuspawner.options import options_from_form, parse_options
from gpuspawner.profiles import parse_profile_list

PROFILES = parse_profile_list(
    [
        {
            "display_name": "One <GPU>",
            "slug": "one-gpu",
            "description": "For you alone.",
            "gpu": {"count": 1},
            "spawner_override": {"environment": {"SECRET": "hidden"}},
            "profile_options": {
                "size": {
                    "display_name": "Size",
                    "choices": {
                        "s": {"display_name": "Small"},
                        "l": {"display_name": "Large", "spawner_override": {"mem_limit": "9G"}},
                    },
                    "unlisted_choice": {
                        "enabled": True,
                        "display_name": "Your own",
                        "validation_regex": r"\d+G",
                        "spawner_override": {"mem_limit": "{value}"},
                    },
                },
            },
        },
        {"display_name": "Own", "slug": "own", "spawner_override": {"image": "lab/hidden:1"}},
        {"display_name": "CPU", "slug": "cpu", "default": True},
    ]
)
IMAGES = {"PyTorch": "lab/hidden:2", "JAX": "lab/hidden:3"}
OFFERS = Offers(
    PROFILES.profiles,
    states={
        "one-gpu": ProfileState(free=3, total=8, gives="1 × A100, 40 GB"),
        "own": ProfileState(disabled="All are in use."),
    },
)


def listed(**kwargs: Any) -> dict[str, dict[str, Any]]:
    return {p["slug"]: p for p in kube_list(OFFERS, **kwargs)}


def test_it_is_told_words_and_never_what_a_choice_sets() -> None:
    told = listed(images=IMAGES)
    assert "hidden" not in json.dumps(told)
    assert "mem_limit" not in json.dumps(told)
    assert told["one-gpu"]["description"] == "For you alone. 1 × A100, 40 GB. 3 of 8 GPUs free."
    assert told["own"]["description"] == "All are in use."
    assert told["cpu"]["description"] == ""
    size = told["one-gpu"]["profile_options"]["size"]
    assert size["choices"] == {
        "s": {"display_name": "Small", "default": True},
        "l": {"display_name": "Large", "default": False},
    }
    assert size["unlisted_choice"]["validation_regex"] == r"^(?:\d+G)$"


def test_images_are_a_question_of_each_profile_that_has_none_of_its_own() -> None:
    told = listed(images=IMAGES, last={"profile": "cpu", "image": "JAX"})
    assert list(told["cpu"]["profile_options"]["image"]["choices"]) == ["PyTorch", "JAX"]
    assert told["cpu"]["profile_options"]["image"]["choices"]["JAX"]["default"]
    assert "image" in told["one-gpu"]["profile_options"]
    assert told["own"]["profile_options"] == {}
    for images in (None, "*", {"PyTorch": "x"}):
        assert listed(images=images)["cpu"]["profile_options"] == {}


def test_the_last_choice_is_marked_where_it_is_free() -> None:
    def marked(last: dict[str, str] | None) -> list[str]:
        return [slug for slug, p in listed(last=last).items() if p["default"]]

    assert marked(None) == ["cpu"]
    assert marked({"profile": "one-gpu", "size": "l"}) == ["one-gpu"]
    assert marked({"profile": "own"}) == ["cpu"]
    size = listed(last={"profile": "one-gpu", "size": "l"})["one-gpu"]["profile_options"]["size"]
    assert [k for k, c in size["choices"].items() if c["default"]] == ["l"]
    text = {"profile": "one-gpu", "size--unlisted-choice": "7G"}
    size = listed(last=text)["one-gpu"]["profile_options"]["size"]
    assert [k for k, c in size["choices"].items() if c["default"]] == ["s"]


def test_a_template_gets_the_list_and_can_be_broken_by_no_name(tmp_path: Path) -> None:
    (tmp_path / "form.html").write_text(
        "<script>window.list = {{ profile_list|tojson }};</script>"
        "{{ profile_list[0].display_name }}"
    )
    html = render_foreign([str(tmp_path)], OFFERS)
    assert html.count("<script>") == 1
    assert "<GPU>" not in html
    assert "One &lt;GPU&gt;" in html


def sent(profile: str, **fields: str) -> dict[str, list[str]]:
    """As jupyterhub-fancy-profiles sends it."""
    return {
        "_xsrf": ["x"],
        "profile": [profile],
        "select-profile": [profile],
        **{f"profile-option-{key}": [value] for key, value in fields.items()},
    }


def test_what_it_sends_is_understood() -> None:
    form = sent("one-gpu", **{"one-gpu--size": "l", "cpu--image": "JAX"})
    assert options_from_form(form) == {"profile": "one-gpu", "size": "l"}
    form = sent("cpu", **{"one-gpu--size": "l", "cpu--image": "JAX"})
    assert options_from_form(form) == {"profile": "cpu", "image": "JAX"}
    own = {"one-gpu--size": "unlisted_choice", "one-gpu--size--unlisted-choice": "7G"}
    assert options_from_form(sent("one-gpu", **own)) == {
        "profile": "one-gpu", "size--unlisted-choice": "7G"
    }  # fmt: skip


@given(
    st.sampled_from(["one-gpu", "own", "cpu"]),
    st.sampled_from(["s", "l"]),
    st.sampled_from(list(IMAGES)),
    st.none() | st.sampled_from(["1G", "20G"]),
)
def test_whatever_it_offers_can_be_had(slug: str, size: str, image: str, text: str | None) -> None:
    asked = listed(images=IMAGES)[slug]["profile_options"]
    fields = {f"{slug}--{key}": {"size": size, "image": image}[key] for key in asked}
    if text and "size" in asked:
        fields |= {f"{slug}--size": "unlisted_choice", f"{slug}--size--unlisted-choice": text}
    choice = parse_options(
        options_from_form(sent(slug, **fields)), PROFILES, user="ada", allowed_images=IMAGES
    )
    assert choice.profile.slug == slug
    assert choice.image == (IMAGES[image] if "image" in asked else None)


def test_kubespawners_setting_is_taken_over() -> None:
    c = Config()
    c.KubeSpawner.additional_profile_form_template_paths = ["/form"]
    configure(c)
    assert c.GPUSpawner.additional_profile_form_template_paths == ["/form"]
    configure(c)
    c.KubeSpawner.additional_profile_form_template_paths = ["/other"]
    configure(c)
    assert c.GPUSpawner.additional_profile_form_template_paths == ["/form"]
