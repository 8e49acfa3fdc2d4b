"""A callable makes the list for each user: form, links, REST and stored options get that user's."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from gpuspawner.overrides import set_override
from gpuspawner.refusal import GPURefusal
from real_spawner import RealHub

TELL_ADMINS = "This hub's settings don't allow your server to start"
CPU = {"display_name": "Without a GPU", "slug": "cpu"}


def for_user(spawner: Any) -> list[dict[str, Any]]:
    own = {"display_name": f"Of {spawner.user.name}", "slug": spawner.user.name, "gpu": {}}
    return [own, CPU]


async def later(spawner: Any) -> list[dict[str, Any]]:
    return for_user(spawner)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RealHub]:
    machine = FakeMachine()
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


@pytest.mark.parametrize("made_by", [for_user, later])
async def test_every_door_has_the_users_own_list(hub: RealHub, made_by: Any) -> None:
    hub.config.GPUSpawner.profile_list = made_by
    spawner = hub.spawner("ada")
    form = await spawner.get_options_form()
    assert "Of ada" in form
    assert "Of ben" not in form
    for options in (
        await spawner.run_options_from_form({"profile": ["ada"]}),
        spawner.options_from_query({"profile": ["ada"]}),
        {"profile": "ada"},
    ):
        assert (await hub.start("ada", options)).devices
        await hub.stop("ada")
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ada", {"profile": "ben"})
    assert refused.value.reason == "invalid-options"
    assert hub.spawner("ada").user_options == {"profile": "ada"}
    await hub.start("ben", {"profile": "ben"})


async def test_it_is_asked_afresh_for_each_form_and_each_start(hub: RealHub) -> None:
    open_now = [{"display_name": "A", "slug": "a"}, CPU]
    hub.config.GPUSpawner.profile_list = lambda spawner: open_now
    spawner = hub.spawner("ada")
    assert 'value="a"' in await spawner.get_options_form()
    del open_now[0]
    with pytest.raises(GPURefusal):
        await hub.start("ada", {"profile": "a"})
    # With one profile left there is no form.
    assert await spawner.get_options_form() == ""
    await hub.start("ada", {"profile": "cpu"})


async def test_an_open_form_is_told_of_the_list_that_it_was_made_from(hub: RealHub) -> None:
    asked = 0
    open_now: list[dict[str, Any]] = [{"display_name": "A", "slug": "a", "gpu": {}}, CPU]

    def counted(spawner: Any) -> list[dict[str, Any]]:
        nonlocal asked
        asked += 1
        return [dict(profile) for profile in open_now]

    hub.config.GPUSpawner.profile_list = counted
    spawner = hub.spawner("ada")
    await spawner.get_options_form()
    open_now[0]["gpu"] = {"count": 99}
    told = await spawner.live_form()
    assert (asked, told["profiles"]["a"]["disabled"]) == (1, "")
    await spawner.get_options_form()  # as somebody reloads the page
    told = await spawner.live_form()
    assert (asked, told["profiles"]["a"]["advice"]) == (2, "Please choose another.")
    # What a start finds is what is told from then on, also of a profile that is gone.
    del open_now[0]
    with pytest.raises(GPURefusal):
        await hub.start("ada", {"profile": "a"})
    assert set((await hub.spawner("ada").live_form())["profiles"]) == {"cpu"}


@pytest.mark.parametrize("hidden", [False, True])
async def test_profiles_of_other_groups_can_be_left_off(hub: RealHub, hidden: bool) -> None:
    secret = {"display_name": "Secret", "slug": "secret", "gpu": {}, "groups": ["staff"]}
    hub.config.GPUSpawner.profile_list = [{"display_name": "A", "slug": "a"}, secret, CPU]
    hub.config.GPUSpawner.hide_forbidden_profiles = hidden
    form = await hub.spawner("ada").get_options_form()
    assert ("Open to other groups only." in form) is not hidden
    assert ("Secret" in form) is not hidden
    assert 'value="a"' in form
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ada", {"profile": "secret"})
    assert refused.value.reason == "profile-forbidden"


async def test_who_is_offered_nothing_is_told_so(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = lambda spawner: []
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ada", {})
    assert refused.value.reason == "profile-forbidden"


def broken(spawner: Any) -> Any:
    raise KeyError("no such course")


BAD: list[tuple[Any, str]] = [
    (lambda spawner: [{"display_name": "A", "gpu": {"cuont": 1}}], "entry 0 ('A'): gpu: unknown"),
    (lambda spawner: [CPU, CPU], "entry 1 ('Without a GPU'): slug"),
    (lambda spawner: None, "profile_list: None is None"),
    (lambda spawner: [{"display_name": "A", "spawner_override": {"imge": 1}}], "mean 'image'"),
    (broken, "the callable failed: KeyError: 'no such course'"),
]


@pytest.mark.parametrize(("made_by", "cause"), BAD)
async def test_a_bad_list_is_the_admins_to_mend(
    hub: RealHub, caplog: pytest.LogCaptureFixture, made_by: Any, cause: str
) -> None:
    hub.config.GPUSpawner.profile_list = for_user
    await hub.start("ada", {"profile": "cpu"})
    await hub.stop("ada")
    hub.config.GPUSpawner.profile_list = made_by
    spawner = hub.spawner("ada")
    spawner.log = logging.getLogger("hub")
    with caplog.at_level("WARNING", logger="hub"):
        form = await spawner.get_options_form()
        assert TELL_ADMINS.replace("'", "&#39;") in form
        assert "cuont" not in form
        for door in (
            lambda: hub.start("ada", {"profile": "ada"}),
            lambda: spawner.run_options_from_form({"profile": ["ada"]}),
        ):
            with pytest.raises(GPURefusal, match=TELL_ADMINS) as refused:
                await door()
            assert cause in refused.value.admin_message
    assert [r.levelname for r in caplog.records if cause in r.getMessage()]
    assert any(r.exc_info for r in caplog.records) == (made_by is broken)
    # What was accepted last is still what a start without options takes.
    assert hub.spawner("ada").orm_spawner.user_options == {"profile": "cpu"}


async def test_warnings_about_it_are_told_once(
    hub: RealHub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.config.GPUSpawner.profile_list = lambda spawner: [
        {"display_name": "A", "kubespawner_override": {}},
        CPU,
    ]
    spawner = hub.spawner("ada")
    spawner.log = logging.getLogger("hub")
    with caplog.at_level("WARNING", logger="hub"):
        for _ in range(3):
            await spawner.get_options_form()
    assert len([r for r in caplog.records if "kubespawner_override" in r.getMessage()]) == 1


# -- values of overrides --------------------------------------------------------------------------


async def folder_of(spawner: Any) -> str:
    return f"/srv/{spawner.user.name}"


async def test_a_value_may_be_made_for_the_user_too(hub: RealHub) -> None:
    hub.config.GPUSpawner.environment = {"A": "1", "B": "2"}
    hub.config.GPUSpawner.profile_list = [
        {
            "display_name": "A",
            "spawner_override": {
                "notebook_dir": folder_of,
                "default_url": lambda spawner: f"/{spawner.user.name}",
                "environment": {"A": None, "C": "3"},
            },
        }
    ]
    spawner = await hub.start("ada", {})
    assert (spawner.notebook_dir, spawner.default_url) == ("/srv/ada", "/ada")
    assert spawner.environment == {"B": "2", "C": "3"}


@pytest.mark.parametrize("made", [lambda spawner: 1 / 0, lambda spawner: "8Q", lambda spawner: {}])
async def test_a_value_that_can_not_be_made_or_used_is_the_admins_to_mend(
    hub: RealHub, made: Any
) -> None:
    hub.config.GPUSpawner.profile_list = [
        {"display_name": "A", "spawner_override": {"mem_limit": made}}
    ]
    with pytest.raises(GPURefusal, match=TELL_ADMINS) as refused:
        await hub.start("ada", {})
    assert "mem_limit" in refused.value.admin_message


def test_what_a_server_makes_of_a_value_stays_its_own(hub: RealHub) -> None:
    written = {"mounts": [{"source": "a"}], "extra_host_config": {"ulimits": [{"name": "b"}]}}
    spawner = hub.spawner("ada")
    for key, value in written.items():
        set_override(spawner, key, value)
    spawner.mounts[0]["source"] = "changed"
    spawner.extra_host_config["ulimits"][0]["name"] = "changed"
    assert written == {
        "mounts": [{"source": "a"}],
        "extra_host_config": {"ulimits": [{"name": "b"}]},
    }


async def test_a_hook_of_a_profile_is_no_maker_of_a_value(hub: RealHub) -> None:
    """It runs when hooks run, and its profile's servers alone have it."""
    ran: list[tuple[str, str]] = []

    class Hooks:
        def own(self, spawner: Any) -> None:
            ran.append(("own", spawner.image))

    hub.config.GPUSpawner.pre_spawn_hook = lambda spawner: ran.append(("all", spawner.image))
    # The image comes after it, so an early call would not see it.
    override = {"pre_spawn_hook": Hooks().own, "image": "img"}
    hub.config.GPUSpawner.image = "other"
    hub.config.GPUSpawner.profile_list = [
        {"display_name": "Own", "slug": "own", "spawner_override": override},
        {**CPU, "spawner_override": {"image": "img"}},
    ]
    for slug in ("own", "cpu"):
        await hub.start("ada", {"profile": slug})
        await hub.stop("ada")
    assert ran == [("own", "img"), ("all", "img")]


async def test_what_one_choice_sets_does_not_show_through_the_next(hub: RealHub) -> None:
    """Also where the hub keeps the spawner: after a refusal here, or when its proxy has failed."""
    big = {
        "display_name": "Big",
        "gpu": {"count": 9},
        "spawner_override": {"mem_limit": "64G", "environment": {"BIG": "1"}},
    }
    hub.config.GPUSpawner.update(
        {
            "profile_list": [big, CPU],
            "max_gpus_per_user": 0,
            "mem_limit": "2G",
            "allowed_images": ["img", "other"],
            "environment": {"ALL": "1"},
        }
    )
    spawner = hub.spawner("ada")
    for _ in range(2):
        with pytest.raises(GPURefusal, match="only 4 GPUs"):
            await hub.start("ada", {"profile": "big", "image": "other"})
        assert spawner.mem_limit == 64 * 2**30
        assert spawner.image == "other"
    assert await hub.start("ada", {"profile": "cpu"}) is spawner
    assert spawner.mem_limit == 2 * 2**30
    assert spawner.environment == {"ALL": "1"}
    assert spawner.image == "img"


async def test_what_others_set_for_a_start_stands(hub: RealHub) -> None:
    """The hub asks the authenticator between one choice and the next."""
    small = {"display_name": "Small", "gpu": {"count": 9}, "spawner_override": {"mem_limit": "1G"}}
    hub.config.GPUSpawner.update({"profile_list": [small, CPU], "max_gpus_per_user": 0})

    def before_each(_user: Any, spawner: Any) -> None:
        spawner.mem_limit = "5G"

    hub.settings["authenticator"].pre_spawn_start = before_each
    with pytest.raises(GPURefusal, match="only 4 GPUs"):
        await hub.start("ada", {"profile": "small"})
    assert hub.spawner("ada").mem_limit == 2**30
    assert (await hub.start("ada", {"profile": "cpu"})).mem_limit == 5 * 2**30


async def test_a_list_that_a_hook_sets_counts_from_then_on(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = [{"display_name": "Lab", "slug": "lab"}, CPU]
    spawner = hub.spawner("ada")
    assert "Lab" in await spawner.get_options_form()

    def by_groups(_user: Any, spawner: Any) -> None:
        spawner.profile_list = [CPU]

    hub.settings["authenticator"].pre_spawn_start = by_groups
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ada", {"profile": "lab"})
    assert refused.value.reason == "invalid-options"
    assert (await hub.start("ada", {"profile": "cpu"})).profile_slug == "cpu"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda _spawner: {"Small": 3}, "3 is neither a name nor an image"),
        (lambda _spawner: 1 / 0, "ZeroDivisionError"),
        (lambda _spawner: "img", "only accepted string value"),
        (lambda _spawner: 5, "5 is"),
    ],
)
async def test_images_that_cant_be_used_are_the_admins_to_mend(
    hub: RealHub, caplog: pytest.LogCaptureFixture, made: Any, told: str
) -> None:
    hub.config.GPUSpawner.allowed_images = made
    with pytest.raises(GPURefusal, match="settings don't allow"):
        await hub.start("ada", {"profile": "cpu"})
    assert "allowed_images" in caplog.text
    assert told in caplog.text
    spawner = hub.spawner("ada")
    assert "settings don" in await spawner.get_options_form()
