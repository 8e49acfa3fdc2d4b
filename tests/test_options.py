"""The validator of what users send: only a whitelisted choice or an OptionsError comes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuspawner.errors import ForbiddenProfile, OptionsError
from gpuspawner.options import Choice, brings_image, options_from_form, parse_options
from gpuspawner.profiles import DEFAULT_PROFILES, parse_profile_list

DEFAULTS = parse_profile_list(DEFAULT_PROFILES)
UNLISTED = {
    "enabled": True,
    "validation_regex": r"lab/[a-z]+:\d+",
    "spawner_override": {"image": "{value}", "environment": {"TAG": "x-{value}-{0}"}},
}
PROFILES = parse_profile_list(
    [
        {
            "display_name": "One GPU",
            "gpu": {"count": 1},
            "spawner_override": {"mem_limit": "4G"},
            "profile_options": {
                "image": {
                    "choices": {
                        "torch": {"spawner_override": {"image": "lab/torch:1"}},
                        "jax": {"default": True, "spawner_override": {"image": "lab/jax:1"}},
                    },
                    "unlisted_choice": UNLISTED,
                },
                "size": {"choices": {"s": {}, "l": {"spawner_override": {"mem_limit": "9G"}}}},
            },
        },
        {
            "display_name": "CPU",
            "profile_options": {"note": {"unlisted_choice": {"enabled": True}}},
        },
        {"display_name": "Staff", "gpu": {"count": 2}, "groups": ["staff"], "users": ["ada"]},
    ]
)
IMAGES = {"PyTorch": "lab/torch:2", "JAX": "lab/jax:2"}


def parse(options: Any, **kwargs: Any) -> Choice:
    return parse_options(options, PROFILES, **{"user": "bob", **kwargs})


def refused(options: Any, **kwargs: Any) -> OptionsError:
    with pytest.raises(OptionsError) as caught:
        parse(options, **kwargs)
    assert caught.value.user_message
    assert len(caught.value.user_message.split()) < 40
    assert len(str(caught.value)) < 600
    return caught.value


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_is_the_default_profile(nothing: Any) -> None:
    choice = parse(nothing)
    assert choice.profile.slug == "cpu"
    assert choice.options == {"profile": "cpu"}
    assert choice.overrides == ()
    assert choice.image is None


def test_defaults_of_options_are_filled_in_and_stored() -> None:
    choice = parse({"profile": "one-gpu"})
    assert choice.options == {"profile": "one-gpu", "image": "jax", "size": "s"}
    assert choice.overrides == ({"mem_limit": "4G"}, {"image": "lab/jax:1"})


def test_the_option_comes_after_the_profile() -> None:
    choice = parse({"profile": "one-gpu", "image": "torch", "size": "l"})
    assert choice.overrides == (
        {"mem_limit": "4G"}, {"image": "lab/torch:1"}, {"mem_limit": "9G"}
    )  # fmt: skip


def test_a_free_text_replaces_the_placeholder_and_nothing_else() -> None:
    choice = parse({"profile": "one-gpu", "image--unlisted-choice": "lab/x:3"})
    assert choice.overrides[1] == {
        "image": "lab/x:3", "environment": {"TAG": "x-lab/x:3-{0}"}
    }  # fmt: skip
    assert choice.options["image--unlisted-choice"] == "lab/x:3"
    assert "image" not in choice.options


@pytest.mark.parametrize(
    "text", ["", "lab/x", "lab/x:3\n", "lab/x:3 ", "other/lab/x:3", "lab/x:3" * 100]
)
def test_a_free_text_must_match_as_a_whole(text: str) -> None:
    refused({"profile": "one-gpu", "image--unlisted-choice": text})


@pytest.mark.parametrize("text", ["{spawner}", "a}", "a\x00b", "\ud800", "a\u202eb", "x" * 256, ""])
def test_a_free_text_without_a_pattern_is_short_printable_and_has_no_braces(text: str) -> None:
    assert parse({"profile": "cpu", "note--unlisted-choice": "größe 1"}).options["profile"] == "cpu"
    refused({"profile": "cpu", "note--unlisted-choice": text})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"profile": "nope"}, "one-gpu, cpu"),
        ({"profile": "Staff"}, "unknown profile 'Staff'"),
        ({"profile": "cpu", "image": "torch"}, "unknown option 'image'"),
        ({"profile": "one-gpu", "size": "xl"}, "allowed are s, l"),
        ({"profile": "one-gpu", "image": "lab/torch:1"}, "allowed are torch, jax"),
        ({"profile": "one-gpu", "size--unlisted-choice": "s"}, "unknown option"),
        ({"profile": "one-gpu", "image": "jax", "image--unlisted-choice": "lab/x:3"}, "both"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "unknown option 'NVIDIA_VISIBLE_DEVICES'"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "unknown option"),
        ({"DOCKER_RESOURCE_NVIDIA-GPU": "GPU-1"}, "unknown option"),
        ({"uid": "0"}, "unknown option"),
        ({"privileged": "true"}, "unknown option"),
        ({"environment": {"A": "b"}}, "a dict"),
        ({"profile": ["cpu"]}, "a list"),
        ({"profile": True}, "a bool"),
        ({"profile": None}, "a NoneType"),
        ({"image": {"a": 1}}, "a dict"),
        ({3: "x"}, "a int"),
        ("cpu", "allowed is a dict"),
        (["cpu"], "a list"),
        (7, "a int"),
        ({"profile": "x" * 10_000_000}, "unknown profile 'xxx"),
        ({"x" * 10_000_000: "y"}, "unknown option 'xxx"),
        ({f"k{i}": "v" for i in range(100_000)}, "100000 keys"),
        ({"profile": "cpu\x00"}, r"cpu\x00"),
        ({"profile": "\ud800"}, r"\ud800"),
    ],
)
def test_refused_with_what_is_allowed(options: Any, said: str) -> None:
    assert said in str(refused(options))


def test_a_profile_for_others_is_forbidden_whoever_asks() -> None:
    error = refused({"profile": "staff"}, groups=["students"])
    assert isinstance(error, ForbiddenProfile)
    assert error.user_message.startswith('"Staff" is open to other groups only')
    assert parse({"profile": "staff"}, groups=["staff"]).profile.slug == "staff"
    assert parse({"profile": "staff"}, user="ada").profile.slug == "staff"
    with pytest.raises(ForbiddenProfile):
        parse_options({}, parse_profile_list([{"display_name": "A", "groups": ["x"]}]), user="bob")


def test_a_guess_tells_no_name_that_the_form_does_not() -> None:
    written = [{"display_name": "For Prof. Moss", "slug": "m1"}, {"display_name": "Free"}]

    def told(hide: bool, **whose: list[str]) -> str:
        profiles = parse_profile_list([{**written[0], **whose}, written[1]])
        with pytest.raises(ForbiddenProfile) as error:
            parse_options({"profile": "m1"}, profiles, user="bob", hide_forbidden=hide)
        return error.value.user_message

    assert "Moss" in told(False, groups=["lab"])
    for text in (told(True, groups=["lab"]), told(False, users=["moss"])):
        assert text.startswith('"m1" is open to other groups only')


def test_a_forbidden_profile_is_not_named_among_the_allowed() -> None:
    error = refused({"profile": "nope"})
    assert "staff" not in error.user_message
    assert "staff" not in str(error)


def images(options: Any, allowed: Any) -> Choice:
    return parse_options(options, DEFAULTS, user="bob", allowed_images=allowed)


def test_images() -> None:
    choice = images({"image": "JAX"}, IMAGES)
    assert choice.image == "lab/jax:2"
    assert choice.options == {"profile": "cpu", "image": "JAX"}
    assert images({}, IMAGES).image is None
    assert images({"image": "any/where:1@sha256:0f"}, "*").image == "any/where:1@sha256:0f"
    nothing: tuple[Any, ...] = (None, {})
    for allowed in nothing:
        with pytest.raises(OptionsError, match="unknown option 'image'"):
            images({"image": "JAX"}, allowed)
    for key in ("lab/jax:2", "", "jax"):
        with pytest.raises(OptionsError, match="not in allowed_images: PyTorch, JAX"):
            images({"image": key}, IMAGES)
    for key in ("", "-v", "a b", "a\n", "{x}", "x" * 256, "$(x)"):
        with pytest.raises(OptionsError, match="not the name of an image"):
            images({"image": key}, "*")


def test_a_profiles_own_image_option_stands_before_allowed_images() -> None:
    choice = parse({"profile": "one-gpu", "image": "torch"}, allowed_images=IMAGES)
    assert choice.image is None
    assert choice.options["image"] == "torch"
    refused({"profile": "one-gpu", "image": "PyTorch"}, allowed_images=IMAGES)


def own(**profile: Any) -> Any:
    return parse_profile_list([{"display_name": "Own", **profile}, {"display_name": "Plain"}])


SETS_IMAGE = {"spawner_override": {"image": "lab/own:1"}}
OWN_IMAGES = {
    "override": own(**SETS_IMAGE),
    "option": own(profile_options={"image": {"choices": {"a": {}}}}),
    "choice": own(profile_options={"kit": {"choices": {"a": {}, "b": SETS_IMAGE}}}),
    "text": own(
        profile_options={
            "kit": {
                "unlisted_choice": {
                    "enabled": True,
                    "validation_regex": "lab/[a-z]+",
                    "spawner_override": {"image": "{value}"},
                }
            }
        }
    ),
}


@pytest.mark.parametrize("profiles", OWN_IMAGES.values(), ids=OWN_IMAGES)
@pytest.mark.parametrize("allowed", [IMAGES, "*"], ids=["listed", "any"])
def test_a_profile_with_images_of_its_own_takes_none_from_the_list(
    profiles: Any, allowed: Any
) -> None:
    assert [brings_image(p) for p in profiles.profiles] == [True, False]
    with pytest.raises(OptionsError) as caught:
        parse_options(
            {"profile": "own", "image": "JAX"}, profiles, user="bob", allowed_images=allowed
        )
    assert "image" in caught.value.user_message or "JAX" in caught.value.user_message
    plain = parse_options(
        {"profile": "plain", "image": "JAX"}, profiles, user="bob", allowed_images=allowed
    )
    assert plain.image
    assert (
        parse_options({"profile": "own"}, profiles, user="bob", allowed_images=allowed).image
        is None
    )


def test_the_forms_list_does_not_count_where_it_is_hidden_and_a_links_image_does() -> None:
    form = {"profile": ["own"], "image": ["JAX"]}
    assert options_from_form(form, own_images=["own"]) == {"profile": "own"}
    assert options_from_form(form, own_images=["other"]) == {"profile": "own", "image": "JAX"}
    assert options_from_form(form) == {"profile": "own", "image": "JAX"}
    assert options_from_form({"image": ["JAX"]}, own_images=["own"]) == {"image": "JAX"}


# -- forms and links ---------------------------------------------------------------------------


def test_a_form_sends_all_profiles_options() -> None:
    form = {
        "_xsrf": ["2|x"],
        "profile": ["one-gpu"],
        "profile-option-one-gpu--image": ["torch"],
        "profile-option-one-gpu--image--unlisted-choice": ["lab/left:1"],
        "profile-option-one-gpu--size": ["l"],
        "profile-option-cpu--note--unlisted-choice": ["ignored"],
    }
    assert options_from_form(form) == {"profile": "one-gpu", "image": "torch", "size": "l"}


def test_a_free_text_in_a_form() -> None:
    form = {
        "profile": ["one-gpu"],
        "profile-option-one-gpu--image": ["unlisted-choice"],
        "profile-option-one-gpu--image--unlisted-choice": ["lab/x:1"],
    }
    assert options_from_form(form) == {"profile": "one-gpu", "image--unlisted-choice": "lab/x:1"}
    form["profile-option-one-gpu--image--unlisted-choice"] = [""]
    with pytest.raises(OptionsError, match="no text"):
        options_from_form(form)
    only = {"profile": ["cpu"], "profile-option-cpu--note--unlisted-choice": ["hello"]}
    assert options_from_form(only) == {"profile": "cpu", "note--unlisted-choice": "hello"}
    only["profile-option-cpu--note--unlisted-choice"] = [""]
    assert options_from_form(only) == {"profile": "cpu"}


def test_the_image_of_the_profile_wins_over_the_forms_own_list() -> None:
    form = {"profile": ["a"], "image": ["JAX"], "profile-option-a--image": ["torch"]}
    assert options_from_form(form) == {"profile": "a", "image": "torch"}
    form = {"profile": ["a"], "image": ["JAX"], "profile-option-a--image--unlisted-choice": ["x"]}
    assert options_from_form(form) == {"profile": "a", "image--unlisted-choice": "x"}


def test_links_and_empty_forms() -> None:
    assert options_from_form({"profile": ["cpu"]}) == {"profile": "cpu"}
    assert options_from_form({"profile": ["one-gpu"], "size": ["l"]}) == {
        "profile": "one-gpu", "size": "l"
    }  # fmt: skip
    assert options_from_form({"_xsrf": ["x"]}) == {}
    assert options_from_form({"opt-profile": ["cpu"]}) == {"profile": "cpu"}
    assert options_from_form({"profile": ["cpu"], "image": [""]}) == {"profile": "cpu"}


@pytest.mark.parametrize(
    "form",
    [
        {"profile": ["a", "b"]},
        {"profile": []},
        {"profile": [b"a"]},
        {"profile": None},
        {"profile": ["a"], "opt-profile": ["a"]},
        {"notes_file": [{"filename": "x", "body": b"y"}]},
        {"profile-option-one-gpu--size": ["l"]},
    ],
)
def test_forms_that_are_refused(form: Any) -> None:
    with pytest.raises(OptionsError) as caught:
        options_from_form(form)
    assert caught.value.user_message


# -- the law -----------------------------------------------------------------------------------

texts = st.text(max_size=12) | st.sampled_from(
    ["one-gpu", "cpu", "staff", "torch", "jax", "s", "l", "PyTorch", "JAX", "lab/x:1", "profile",
     "image", "size", "note--unlisted-choice", "image--unlisted-choice", "unlisted-choice",
     "environment", "NVIDIA_VISIBLE_DEVICES", "__class__", "{value}"]
)  # fmt: skip
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
likely = st.dictionaries(texts, texts, max_size=4)


@given(
    junk | likely,
    st.sampled_from(["bob", "ada"]),
    st.sampled_from([(), ("staff",), ("other",)]),
    st.sampled_from([None, {}, IMAGES, "*"]),
)
@example({"profile": "one-gpu", "image--unlisted-choice": "lab/x:1"}, "bob", (), IMAGES)
def test_nothing_sent_widens_what_they_get(
    sent: Any, user: str, groups: tuple[str, ...], allowed: Any
) -> None:
    choice: Choice | None
    try:
        choice = parse_options(sent, PROFILES, user=user, groups=groups, allowed_images=allowed)
    except OptionsError as refused_with:
        words = refused_with.user_message
        choice = None
    if choice is None:
        assert words
        return
    profile = choice.profile
    assert profile in PROFILES.allowed(user, groups)
    assert choice.options["profile"] == profile.slug
    by_key = {o.key: o for o in profile.options}
    listed = [profile.override]
    for key, value in choice.options.items():
        name, _, free = key.partition("--")
        if name == "profile" or (name == "image" and "image" not in by_key):
            continue
        if free:
            assert by_key[name].unlisted is not None
            assert "{" not in value
        else:
            found = by_key[name].choice(value)
            assert found is not None
            listed.append(found.override)
    for override in choice.overrides:
        free_text = choice.options.get("image--unlisted-choice")
        assert override in listed or override["image"] == free_text
    if choice.image is not None:
        assert allowed == "*" or choice.image in IMAGES.values()
    again = parse_options(
        dict(choice.options), PROFILES, user=user, groups=groups, allowed_images=allowed
    )
    assert again == choice


@given(
    st.dictionaries(
        texts | st.tuples(texts, texts).map(lambda t: f"profile-option-{t[0]}--{t[1]}"),
        st.lists(texts, max_size=2) | junk,
        max_size=5,
    )
)
def test_any_form_is_plain_options_or_refused(form: dict[str, Any]) -> None:
    try:
        options = options_from_form(form)
    except OptionsError:
        return
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in options.items())
