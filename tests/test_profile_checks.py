"""``profile_list`` at the hub's start: values tried on their settings, lists that moved here."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets import Int
from traitlets.config import Config

from gpuspawner import GPUSpawner, configure
from gpuspawner.config_sections import BadConfigError
from gpuspawner.errors import ConfigError
from gpuspawner.gpu_requests import GPU_KEYS
from gpuspawner.overrides import settable
from gpuspawner.profile_options import CHOICE_KEYS, OPTION_KEYS, UNLISTED_KEYS, Reading
from gpuspawner.profiles import LATER_PROFILE_KEYS, PROFILE_KEYS, ProfileList, parse_profile_list

LINE = "c.GPUSpawner.profile_list: entry 0 ('A'): "


class Own(GPUSpawner):
    """An admin's subclass; its trait is no setting."""

    rack = Int(0)


def check(value: Any, cls: type[GPUSpawner] = GPUSpawner, **settings: Any) -> None:
    c = Config()
    c.JupyterHub.spawner_class = cls
    c.GPUSpawner = Config({"profile_list": value, **settings})
    configure(c)


def override(**traits: Any) -> list[Any]:
    return [{"display_name": "A", "spawner_override": traits}]


def choice(profile: Any = None, **traits: Any) -> list[Any]:
    options = {"o": {"choices": {"c": {"spawner_override": traits}}}}
    return [{"display_name": "A", "profile_options": options, "spawner_override": profile or {}}]


# -- values ---------------------------------------------------------------------------------------


def test_what_admins_override_is_accepted() -> None:
    traits: dict[str, Any] = {
        "image": "lab/torch:1", "mem_limit": "8G", "mem_guarantee": "1G", "cpu_limit": 2,
        "cpu_guarantee": 0.5, "environment": {"A": "1", "B": None}, "volumes": {"a": "/b"},
        "shm_size": "2G", "default_url": "/lab", "notebook_dir": "/srv", "start_timeout": 600,
        "cmd": ["start-singleuser.sh"], "extra_create_kwargs": {"labels": {"a": "b"}},
        "extra_host_config": {"ulimits": []}, "uid": 2000, "supplemental_gids": [4000],
    }  # fmt: skip
    check(override(**traits))
    check(choice(**traits))


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"mem_limit": "8Q"}, "mem_limit", "use a size such as '8G'"),
    ({"cpu_limit": "x"}, "cpu_limit", "use a number of processors"),
    ({"image": 3}, "image", "expected a unicode string"),
    ({"environment": []}, "environment", "expected a dict"),
    ({"volumes": "x"}, "volumes", "expected a dict"),
    ({"start_timeout": "long"}, "start_timeout", "expected an int"),
    ({"memory_fraction": 2}, "", "above 0 and at most 1"),
    ({"uid": 0}, "", "uid is 0, which is root"),
    ({"extra_host_config": {"privileged": True}}, "", "allow_privileged"),
    ({"extra_host_config": {"binds": 3}}, "", "a list is needed"),
    ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "environment", "profile_list"),
    ({"user": "x"}, "", "not a trait"),
    ({"imge": "x"}, "", "did you mean 'image'"),
    ({"remove_containers": False}, "", "write 'remove'"),
    ({"container_image": "lab/torch:1"}, "", "write 'image'"),
    ({"server_token_scopes": ["self"]}, "", "can't be set by a profile"),
    ({"tls_verify": False}, "", "can't be set by a profile"),
    ({"post_stop_hook": print}, "", "can't be set by a profile"),
]


def test_no_old_name_of_a_setting_passes() -> None:
    for old in GPUSpawner._deprecated_aliases:
        with pytest.raises(BadConfigError, match="old name"):
            check(override(**{old: ""}))


@pytest.mark.parametrize(("traits", "key", "said"), WRONG)
def test_a_value_that_does_not_fit_stops_the_hub_at_its_start(
    traits: dict[str, Any], key: str, said: str
) -> None:
    for value, place in (
        (override(**traits), "spawner_override"),
        (choice(**traits), "profile_options.o.choices.c.spawner_override"),
    ):
        with pytest.raises(BadConfigError) as caught:
            check(value)
        text = str(caught.value)
        assert text.startswith(f"{LINE}{place}{'.' if key else ''}{key}")
        assert said in text


def test_a_choice_comes_on_top_of_its_profile() -> None:
    opened = {"privileged": True}
    with pytest.raises(BadConfigError, match="allow_privileged"):
        check(choice(extra_host_config=opened))
    check(choice({"allow_privileged": True}, extra_host_config=opened))
    check(override(allow_root=True, uid=0))
    # One profile opens nothing for the next.
    with pytest.raises(BadConfigError, match=r"entry 1 \('B'\)"):
        check(
            [
                *override(allow_root=True),
                {"display_name": "B", "spawner_override": {"uid": 0}},
            ]
        )


def test_a_value_that_is_made_at_each_start_is_left_until_then() -> None:
    check(override(mem_limit=lambda spawner: "8Q"))
    unlisted = {
        "enabled": True,
        "validation_regex": "[0-9]+",
        "spawner_override": {"mem_limit": "{value}G"},
    }
    option = {"display_name": "A", "profile_options": {"o": {"unlisted_choice": unlisted}}}
    check([option])
    unlisted["spawner_override"] = {"mem_limit": "8Q"}
    with pytest.raises(BadConfigError, match=r"unlisted_choice\.spawner_override\.mem_limit"):
        check([option])


def test_traits_of_an_admins_own_class_may_be_set() -> None:
    check(override(rack=3), Own)
    with pytest.raises(BadConfigError, match="'rack' is not a trait"):
        check(override(rack=3))
    assert "user" not in settable(Own)


# -- a callable -----------------------------------------------------------------------------------


def test_a_callable_is_asked_later() -> None:
    check(lambda spawner: [])
    check(lambda *spawners: [])
    check(dict)  # tells no signature
    wrong: list[Any] = [lambda: [1], lambda user, spawner: []]
    for made_by in wrong:
        with pytest.raises(BadConfigError, match="lambda spawner"):
            check(made_by)


# -- lists that were written for KubeSpawner ------------------------------------------------------

IMAGES: dict[str, Any] = {
    "image": {
        "display_name": "Image",
        "choices": {
            "base": {
                "display_name": "Base",
                "kubespawner_override": {"image": "lab/base:2026"},
            },
            "torch": {
                "display_name": "PyTorch",
                "default": True,
                "kubespawner_override": {"image": "lab/torch:2026", "default_url": "/lab"},
            },
        },
        "unlisted_choice": {
            "enabled": True,
            "display_name": "Image name",
            "display_name_in_choices": "Another image",
            "validation_regex": "^lab/.+:.+$",
            "validation_message": "Write lab/<name>:<tag>.",
            "kubespawner_override": {"image": "{value}", "start_timeout": 600},
        },
    },
    "size": {
        "display_name": "Memory",
        "choices": {
            "mem_2": {"display_name": "2 GB", "kubespawner_override": {"mem_limit": "2G"}},
            "mem_8": {
                "display_name": "8 GB",
                "kubespawner_override": {"mem_limit": "8G", "mem_guarantee": "4G"},
            },
        },
    },
}
KUBE: list[dict[str, Any]] = [
    {
        "display_name": "Teaching (2 GB)",
        "description": "For courses.",
        "slug": "teaching",
        "default": True,
        "kubespawner_override": {
            "image": "lab/teaching:2026",
            "cpu_limit": 2,
            "cpu_guarantee": 0.5,
            "environment": {"COURSE": "ml", "OLD": None},
            "default_url": lambda spawner: "/lab",
        },
    },
    {"display_name": "Research", "profile_options": IMAGES},
    {"display_name": "Plain"},
]


def read(value: Any) -> ProfileList:
    return parse_profile_list(value, reading=Reading(settable(GPUSpawner)))


def test_a_list_of_kubespawners_shape_is_read_as_it_is() -> None:
    check(KUBE)
    teaching, research, plain = read(KUBE).profiles
    assert [p.slug for p in (teaching, research, plain)] == ["teaching", "research", "plain"]
    assert [p.needs_gpu for p in (teaching, research, plain)] == [False] * 3
    image, size = research.options
    assert (image.default, size.default) == ("torch", "mem_2")
    assert image.unlisted is not None
    assert image.unlisted.override == {"image": "{value}", "start_timeout": 600}
    as_dict = {f"{number}": entry for number, entry in enumerate(KUBE)}
    assert [p.slug for p in read(as_dict).profiles] == ["teaching", "research", "plain"]


def test_its_words_are_named_in_one_warning_for_each_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuspawner.config.get_logger", lambda: logging.getLogger("hub"))
    check(KUBE)
    assert len(re.findall("read as 'spawner_override'", caplog.text)) == 6


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("extra_resource_limits", {"nvidia.com/gpu": "2"}, "'gpu': {'count': 2}"),
        ("extra_resource_limits", {"nvidia.com/mig-1g.10gb": 1}, "'gpu': {'count': 1}"),
        ("extra_resource_guarantees", 3, "'gpu': {'count': 1}"),
        ("image_spec", "x", "write 'image'"),
        ("image_pull_policy", "Always", "'pull_policy'"),
        ("node_selector", {"a": "b"}, "'models'"),
        ("node_affinity_required", [], "'models'"),
        ("tolerations", [], "'models'"),
        ("storage_capacity", "10Gi", "'volumes'"),
        ("volume_mounts", [], "'volumes'"),
        ("fs_gid", 100, "'gid'"),
        ("privileged", True, "allow_privileged"),
        ("extra_pod_config", {}, "'extra_host_config'"),
        ("priority_class_name", "high", "remove it"),
    ],
)
def test_what_only_kubernetes_has_is_refused_with_what_to_write(
    name: str, value: Any, said: str
) -> None:
    for key in ("kubespawner_override", "spawner_override"):
        with pytest.raises(BadConfigError) as caught:
            check([{"display_name": "A", key: {name: value}}])
        text = str(caught.value)
        assert text.startswith(f"{LINE}{key}.{name}: only KubeSpawner has it")
        assert said in text


def test_no_setting_of_ours_is_taken_for_one_of_theirs() -> None:
    from gpuspawner.kube_words import instead_of

    ours = settable(GPUSpawner)
    assert [name for name in ours if instead_of(name, 1)] == []


# -- any mistake anywhere -------------------------------------------------------------------------

VALID: list[dict[str, Any]] = [
    *KUBE,
    {
        "display_name": "GPU",
        "gpu": [{"count": 2, "linked": "prefer", "models": ["*A100*"]}, {"share": "1/2"}],
        "groups": ["a"],
        "users": ["b"],
        "max_hours": 4,
        "max_gpus": 2,
        "max_servers_per_user": 1,
        "spawner_override": {
            "mem_limit": "8G",
            "uid": 2000,
            "volumes": {"a": {"bind": "/a", "mode": "ro"}},
            "extra_host_config": {"cap_add": [], "binds": {}, "device_requests": []},
            "extra_create_kwargs": {"labels": {"a": "b"}, "user": "", "runtime": "runc"},
        },
    },
]
junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.binary(max_size=3),
    st.just(object()), st.just(object), st.just(10**5000), st.just([]), st.just({}), st.just(()),
    st.just({1}), st.just({3: 4}), st.just({None: None}), st.just([[]]), st.just({"count": {}}),
    st.just("{value}"), st.just("\ud800"), st.just({"\n": 1}),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        below = [p for key, item in value.items() for p in places(item, (*path, key))]
    elif isinstance(value, list):
        below = [p for key, item in enumerate(value) for p in places(item, (*path, key))]
    else:
        below = []
    return [path, *below] if path else below


def spoil(data: st.DataObject, wrong: Any, how: str) -> tuple[int, list[Any]]:
    """A valid list with one thing in it replaced, renamed or added, and the entry's index."""
    value = copy.deepcopy(VALID)
    path = data.draw(st.sampled_from(places(VALID)))
    inside: Any = value
    for key in path[:-1]:
        inside = inside[key]
    if how == "value" or isinstance(inside, list):
        inside[path[-1]] = wrong
    elif isinstance(wrong, str):
        inside[wrong] = inside.pop(path[-1]) if how == "key" else inside[path[-1]]
    return path[0], value


HOW = st.sampled_from(["value", "key", "more"])


@given(st.data(), junk, HOW)
def test_any_mistake_anywhere_is_named_with_its_entry_or_means_something(
    data: st.DataObject, wrong: Any, how: str
) -> None:
    index, value = spoil(data, wrong, how)
    try:
        found = len(read(value).profiles)
        named = True
    except ConfigError as error:
        found = len(VALID)
        # The one that is wrong, or a later one that does not go with it.
        named = any(f"entry {n} (" in str(error) for n in range(index, len(VALID)))
    assert (found, named) == (len(VALID), True)


@given(st.data(), junk, HOW)
def test_any_mistake_stops_the_hub_with_words_or_means_something(
    data: st.DataObject, wrong: Any, how: str
) -> None:
    _, value = spoil(data, wrong, how)
    try:
        check(value, max_gpus_per_user=4)
        said = ""
    except BadConfigError as error:
        said = str(error)
    assert said == "" or said.startswith("c.GPUSpawner.profile_list: entry ")


# -- the page about it ----------------------------------------------------------------------------


def test_every_key_has_a_row_and_an_example() -> None:
    page = (Path(__file__).parents[1] / "docs/reference/profiles.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    told = {key for row in rows for key in re.findall(r"\w+", row)}
    known = {*PROFILE_KEYS, *GPU_KEYS, *OPTION_KEYS, *CHOICE_KEYS, *UNLISTED_KEYS}
    assert told == known
    examples = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert {key for key in known if f'"{key}":' not in examples} == set()
    later = page.split("## Not in this version")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", later)) == set(LATER_PROFILE_KEYS)


@pytest.mark.parametrize("name", ["reference/profiles.md", "how-to/write-profiles.md"])
async def test_the_callables_among_the_examples_make_lists(name: str) -> None:
    async def auth_state() -> dict[str, str]:
        return {"project": "Neutrinos"}

    groups = [SimpleNamespace(name="course-ml"), SimpleNamespace(name="staff")]
    user = SimpleNamespace(name="noor", groups=groups, get_auth_state=auth_state)
    page = (Path(__file__).parents[1] / "docs" / name).read_text()
    made = []
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        c = Config()
        exec(block, {"c": c})
        if callable(c.GPUSpawner.profile_list):
            value = c.GPUSpawner.profile_list(SimpleNamespace(user=user))
            made.append(read(await value if inspect.isawaitable(value) else value))
    assert [len(one.profiles) for one in made] == [2]
