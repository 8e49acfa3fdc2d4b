"""``profile_list``: what is read from it, and that every mistake is named with place and fix."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.errors import ConfigError
from gpuspawner.profile_options import Reading
from gpuspawner.profiles import (
    DEFAULT_PROFILES,
    default_profile,
    parse_profile_list,
    slug_from,
)
from gpuspawner.request import Request

DEFAULTS = parse_profile_list(DEFAULT_PROFILES)
FULL: list[dict[str, Any]] = [
    {
        "display_name": "Half a Lab (A100)",
        "description": "Two cards with room.",
        "default": True,
        "gpu": {
            "count": 2,
            "share": "1",
            "min_memory_gib": 39.5,
            "models": ["*A100*", "*H200"],
        },
        "groups": ["physics", "staff"],
        "users": ["ada"],
        "spawner_override": {"mem_limit": "8G", "environment": {"A": "1"}},
        "profile_options": {
            "image": {
                "display_name": "Image",
                "choices": {
                    "torch": {
                        "display_name": "PyTorch",
                        "spawner_override": {"image": "lab/torch:1"},
                    },
                    "jax": {"default": True, "spawner_override": {"image": "lab/jax:1"}},
                },
                "unlisted_choice": {
                    "enabled": True,
                    "display_name": "Your own",
                    "validation_regex": "lab/.+:.+",
                    "validation_message": "Images of lab only.",
                    "spawner_override": {"image": "{value}"},
                },
            }
        },
    },
    {"display_name": "Plain", "slug": "plain-one", "spawner_override": {"uid": 2000}},
]


def test_every_field_is_read() -> None:
    parsed = parse_profile_list(FULL)
    first, second = parsed.profiles
    assert (first.slug, first.display_name) == ("half-a-lab-a100", "Half a Lab (A100)")
    assert first.requests[0] == Request(2, Fraction(1), 40448, ("*A100*", "*H200"))
    assert first.default
    assert first.description == "Two cards with room."
    assert first.groups == frozenset({"physics", "staff"})
    assert first.users == frozenset({"ada"})
    assert first.override["mem_limit"] == "8G"
    (option,) = first.options
    assert (option.key, option.display_name, option.default) == ("image", "Image", "jax")
    assert [(c.key, c.display_name) for c in option.choices] == [
        ("torch", "PyTorch"), ("jax", "jax")
    ]  # fmt: skip
    assert option.unlisted is not None
    assert option.unlisted.message == "Images of lab only."
    assert second.slug == "plain-one"
    assert second.requests[0] == Request(count=0)
    assert parsed.get("plain-one") is second
    assert parsed.get("x") is None
    assert parsed.warnings == ()


def test_limits_are_read() -> None:
    limits = {"max_hours": 0.5, "max_servers_per_user": 2, "max_gpus": 6}
    free, limited = parse_profile_list(entry(**limits)).profiles
    assert (free.max_hours, free.max_servers_per_user, free.max_gpus) == (None, None, None)
    assert (limited.max_hours, limited.max_servers_per_user, limited.max_gpus) == (0.5, 2, 6)


def test_defaults() -> None:
    assert [p.slug for p in DEFAULTS.profiles] == ["one-gpu", "cpu"]
    assert [p.requests[0].count for p in DEFAULTS.profiles] == [1, 0]
    assert parse_profile_list([{"display_name": "A", "gpu": {}}]).profiles[0].requests[
        0
    ] == Request(1)


def test_who_may_have_it() -> None:
    first, second = parse_profile_list(FULL).profiles
    assert first.allows("ada", [])
    assert first.allows("bob", ["staff"])
    assert not first.allows("bob", ["chemistry"])
    assert not first.allows("physics", [])
    assert second.allows("anyone", [])


def test_the_default_is_the_marked_one_else_cpu_else_the_first() -> None:
    marked, plain = parse_profile_list(FULL).profiles
    assert default_profile([plain, marked]) is marked
    assert default_profile(DEFAULTS.profiles) is DEFAULTS.get("cpu")
    assert default_profile(DEFAULTS.profiles[:1]) is DEFAULTS.get("one-gpu")
    assert default_profile([]) is None


def test_kubespawners_key_is_read_with_a_warning() -> None:
    parsed = parse_profile_list([{"display_name": "A", "kubespawner_override": {"image": "x"}}])
    assert parsed.profiles[0].override == {"image": "x"}
    (warning,) = parsed.warnings
    assert "entry 0 ('A')" in warning
    assert "spawner_override" in warning


def test_a_disabled_unlisted_choice_is_none() -> None:
    option = {"choices": {"a": {}}, "unlisted_choice": {"enabled": False}}
    parsed = parse_profile_list([{"display_name": "A", "profile_options": {"o": option}}])
    assert parsed.profiles[0].options[0].unlisted is None


def test_a_dict_is_read_in_the_order_of_its_keys() -> None:
    value: dict[str, Any] = {
        "20-b": {"display_name": "B"},
        "10-a": {"display_name": "A", "slug": "own"},
    }
    assert [p.slug for p in parse_profile_list(value).profiles] == ["own", "b"]


def test_one_users_list_may_be_empty() -> None:
    assert parse_profile_list([], may_be_empty=True).profiles == ()


def entry(**fields: Any) -> list[Any]:
    return [{"display_name": "First"}, {"display_name": "Lab", **fields}]


def option(**fields: Any) -> list[Any]:
    return entry(profile_options={"o": fields})


#: what is written, the place that must be named, what else must be said
WRONG: list[tuple[Any, str, str]] = [
    ([], "profile_list", "empty"),
    ({}, "profile_list", "empty"),
    ("x", "profile_list", "is text"),
    ({"a": 3}, "entry 'a' (no display_name)", "is a number; use a dict"),
    ({3: {"display_name": "A"}}, "profile_list", "3 is a key"),
    ({"display_name": "A"}, "profile_list", "write it into a list"),
    (lambda spawner: [], "profile_list", "use a list of profiles"),
    ([3], "entry 0 (no display_name)", "is a number; use a dict"),
    ([{"slug": "a"}], "entry 0 (no display_name): display_name", "missing"),
    ([{"display_name": 3}], "display_name", "is a number; use a text"),
    ([{"display_name": "  "}], "display_name", "empty"),
    ([{"display_name": "日本"}], "slug", "no slug can be made"),
    (entry(slug="A b"), "entry 1 ('Lab'): slug", "lowercase letters"),
    (entry(slug="a--b"), "slug", "single dashes"),
    (entry(slug="a" * 64), "slug", "63"),
    (entry(slug=7), "slug", "use a text"),
    (entry(slug="first"), "entry 1 ('Lab'): slug", "also the slug of entry 0 ('First')"),
    (
        [{"display_name": "A", "default": True}, {"display_name": "B", "default": True}],
        "entry 1 ('B'): default",
        "entry 0 ('A')",
    ),
    (entry(default=1), "default", "use True or False"),
    (entry(default="yes"), "default", "use True or False"),
    (entry(description=None), "description", "None; use a text"),
    (entry(gpus={}), "entry 1 ('Lab')", "did you mean 'gpu'"),
    (entry(display="x"), "entry 1 ('Lab')", "allowed are display_name"),
    (entry(gpu=1), "entry 1 ('Lab'): gpu", "use a dict with count"),
    (entry(gpu=None), "gpu", "use a dict"),
    (entry(gpu=[]), "entry 1 ('Lab'): gpu", "the list is empty"),
    (entry(gpu=[{}, 3]), "entry 1 ('Lab'): gpu[1]", "is a number; use a dict"),
    (entry(gpu=[{"count": 1}, {"count": 0}]), "gpu[1].count", "a profile of its own"),
    (entry(gpu=[{"count": 0}]), "gpu[0].count", "a profile of its own"),
    (entry(gpu=[{"share": "1/2"}, {"share": 2}]), "gpu[1].share", "not a part of a card"),
    (entry(gpu={"cuont": 1}), "gpu", "did you mean 'count'"),
    (entry(gpu={"count": True}), "gpu.count", "True or False; use a whole number"),
    (entry(gpu={"count": 1.0}), "gpu.count", "use a whole number"),
    (entry(gpu={"count": "1"}), "gpu.count", "is text; use a whole number"),
    (entry(gpu={"count": -1}), "gpu.count", "negative; use 0 (no GPU) or more"),
    (entry(gpu={"count": 10**5000}), "gpu.count", "use 0 (no GPU) or more"),
    (entry(gpu={"count": 0, "models": ["x"]}), "gpu", "'models' can mean nothing"),
    *[
        (entry(gpu={"share": value}), "gpu.share", "a fraction above 0 and at most 1")
        for value in (
            "0",
            "3/2",
            "1/0",
            "half",
            "",
            "1/",
            "/2",
            "-1/2",
            "1e-999999999",
            "50%",
            "1/2/3",
            "½",
            0,
            2,
            -0.5,
            1.5,
            10**5000,
            float("nan"),
            float("inf"),
            True,
            None,
            ["1/2"],
            b"1/2",
        )
    ],
    (entry(gpu={"share": 2}), "gpu.share", "How many cards is said by 'count'"),
    (entry(gpu={"share": 0.3333}), "gpu.share", 'write "1/3"'),
    (entry(gpu={"share": "0.3333"}), "gpu.share", 'write "1/3"'),
    (entry(gpu={"share": 1e-9}), "gpu.share", 'write "1/100"'),
    (entry(gpu={"share": "1/200"}), "gpu.share", 'write "1/100"'),
    (entry(gpu={"min_memory_gib": "40"}), "gpu.min_memory_gib", "is text; use a number of GiB"),
    (entry(gpu={"min_memory_gib": True}), "gpu.min_memory_gib", "use a number of GiB"),
    (entry(gpu={"min_memory_gib": -1}), "gpu.min_memory_gib", "number of GiB"),
    (entry(gpu={"min_memory_gib": float("inf")}), "gpu.min_memory_gib", "number of GiB"),
    (entry(gpu={"models": "A100"}), "gpu.models", "use a list of card names"),
    (entry(gpu={"models": []}), "gpu.models", "empty"),
    (entry(gpu={"models": [3]}), "gpu.models", "3 is in the list"),
    (entry(gpu={"models": "A100"}), "gpu.models", "write ['A100']"),
    (entry(gpu={"mig_profile": "1g"}), "gpu.mig_profile", "such as '1g.10gb'"),
    (entry(gpu={"mig_profile": 1}), "gpu.mig_profile", "use a text"),
    (entry(gpu={"mig_profile": "1g.5gb", "share": "1/2"}), "gpu", "'share' and 'mig_profile'"),
    (
        entry(gpu={"mig_profile": "1g.5gb", "count": 2, "linked": "prefer"}),
        "gpu",
        "'linked' and 'mig_profile'",
    ),
    (entry(gpu={"count": 2, "linked": "prefer", "share": "1/2"}), "gpu", "'linked' and 'share'"),
    (entry(gpu={"linked": "prefer"}), "gpu", "'linked' is there and 'count' is 1"),
    (entry(gpu={"count": 2, "linked": True}), "gpu.linked", 'write "require"'),
    (entry(gpu={"count": 2, "linked": False}), "gpu.linked", "remove it"),
    (entry(gpu={"count": 2, "linked": "nvlink"}), "gpu.linked", 'use "require" or "prefer"'),
    (entry(gpu={"count": 2, "linked": []}), "gpu.linked", 'use "require" or "prefer"'),
    *[
        (entry(**{key: 1}), f"entry 1 ('Lab'): {key}", "not in this version")
        for key in (
            "extend_hours",
            "idle_minutes",
            "wait_minutes",
            "priority",
        )
    ],
    (entry(max_hours="4"), "entry 1 ('Lab'): max_hours", "a number of hours"),
    (entry(max_hours=True), "max_hours", "a number of hours"),
    *[
        (entry(max_hours=value), "max_hours", "above 0")
        for value in (0, -1, float("inf"), float("nan"), 1e6, 10**5000)
    ],
    *[
        case
        for key, unit in (("max_gpus", "cards"), ("max_servers_per_user", "servers"))
        for case in (
            (entry(**{key: 0}), f"entry 1 ('Lab'): {key}", "from 1"),
            (entry(**{key: 10**5000}), key, "from 1"),
            (entry(**{key: 1.0}), key, f"a whole number of {unit}"),
            (entry(**{key: True}), key, f"a whole number of {unit}"),
            (entry(**{key: None}), key, f"a whole number of {unit}"),
        )
    ],
    (entry(groups="staff"), "groups", "use a list of names"),
    (entry(groups=[]), "groups", "empty"),
    (entry(users=[None]), "users", "None is in the list"),
    (entry(users={"ada": 1}), "users", "use a list of names"),
    (entry(profile_options=[]), "profile_options", "use a dict of options"),
    (option(), "entry 1 ('Lab'): profile_options.o", "nothing to choose"),
    (option(choice={}), "profile_options.o", "did you mean 'choices'"),
    (option(choices=["a"]), "profile_options.o.choices", "use a dict of choices"),
    (option(choices={"a": "x"}), "profile_options.o.choices.a", "use a dict with display_name"),
    (option(choices={"": {}}), "profile_options.o.choices", "not a key for a choice"),
    (option(choices={"unlisted-choice": {}}), "o.choices", "meaning of its own"),
    (
        option(choices={"a": {"default": True}, "b": {"default": True}}),
        "profile_options.o.choices",
        "'a' and 'b' are both the default",
    ),
    (option(choices={"a": {"overide": {}}}), "o.choices.a", "unknown key 'overide'"),
    (option(unlisted_choice={"enabled": "yes"}), "o.unlisted_choice.enabled", "True or False"),
    (
        option(unlisted_choice={"enabled": True, "validation_regex": "("}),
        "o.unlisted_choice.validation_regex",
        "not a regular expression",
    ),
    (
        option(
            unlisted_choice={
                "enabled": True,
                "spawner_override": {"mounts": [{"source": "{value}", "target": "/data"}]},
            }
        ),
        "o.unlisted_choice",
        "add a 'validation_regex'",
    ),
    (
        option(unlisted_choice={"enabled": True, "spawner_override": {"mem_limit": "{value}"}}),
        "o.unlisted_choice",
        "into mem_limit unchecked",
    ),
    (entry(spawner_override={"remove": False}), "spawner_override", "can't be set by a profile"),
    (entry(profile_options={"a--b": {}}), "profile_options", "not a name for an option"),
    (entry(profile_options={"profile": {}}), "profile_options", "rename the option"),
    (entry(profile_options={"opt-x": {}}), "profile_options", "rename the option"),
    (entry(profile_options={"select-profile": {}}), "profile_options", "rename the option"),
    (option(choices={"unlisted_choice": {}}), "o.choices", "rename this choice"),
    (entry(description="half \ud83d"), "description", "use UTF-8"),
    (entry(profile_options={3: {}}), "profile_options", "not a name for an option"),
    (entry(spawner_override=[]), "spawner_override", "use a dict of spawner traits"),
    (entry(spawner_override={"_x": 1}), "spawner_override", "not the name of a spawner trait"),
    (entry(spawner_override={"a b": 1}), "spawner_override", "not the name of a spawner trait"),
    (entry(spawner_override={"user_options": 1}), "spawner_override", "can't be set by a profile"),
    (
        entry(spawner_override={}, kubespawner_override={}),
        "kubespawner_override",
        "keep only that one",
    ),
    (
        entry(spawner_override={"environment": {"NVIDIA_VISIBLE_DEVICES": "all"}}),
        "spawner_override.environment.NVIDIA_VISIBLE_DEVICES",
        "'gpu': {'count': 1}",
    ),
    (
        entry(spawner_override={"extra_host_config": {"runtime": "nvidia"}}),
        "spawner_override.extra_host_config.runtime",
        "'gpu': {'count': 1}",
    ),
    (
        entry(
            spawner_override={
                "extra_host_config": {"device_requests": [{"Capabilities": [["gpu"]]}]}
            }
        ),
        "spawner_override.extra_host_config.device_requests",
        "'gpu': {'count': 1}",
    ),
]


@pytest.mark.parametrize(("value", "place", "said"), WRONG)
def test_mistakes_are_named(value: Any, place: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_profile_list(value)
    text = str(caught.value)
    assert text.startswith("profile_list")
    assert place in text, text
    assert said in text, text


def test_traits_are_checked_where_they_are_known() -> None:
    good = entry(spawner_override={"mem_limit": "1G"})
    assert parse_profile_list(good, reading=Reading({"mem_limit"})).profiles[1].override
    with pytest.raises(ConfigError, match=r"did you mean 'mem_limit'"):
        parse_profile_list(
            entry(spawner_override={"memlimit": 1}), reading=Reading({"mem_limit", "image"})
        )


def test_requests_for_other_devices_are_kept() -> None:
    requests = [{"Driver": "fpga", "Count": 1}]
    value = entry(spawner_override={"extra_host_config": {"device_requests": requests}})
    assert parse_profile_list(value).profiles[1].override["extra_host_config"]


@given(st.text())
def test_a_slug_is_always_a_slug(display_name: str) -> None:
    slug = slug_from(display_name)
    assert slug == "" or (re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug) and len(slug) <= 63)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.dictionaries(
    st.sampled_from(
        ["slug", "description", "default", "gpu", "groups", "users", "profile_options",
         "spawner_override"]
    ),
    junk | st.fixed_dictionaries({"count": junk, "share": junk, "min_memory_gib": junk}),
    max_size=4,
)  # fmt: skip


@given(st.lists(junk | fields.map(lambda f: {"display_name": "Lab", **f}), max_size=3))
def test_junk_is_a_config_error_or_a_list(value: list[Any]) -> None:
    try:
        read = len(parse_profile_list(value).profiles)
        said = ""
    except ConfigError as error:
        read, said = -1, str(error)
    assert read == len(value) or said.startswith("profile_list")
