"""What comes before a start: no pull for who is refused, and a name that an older create has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm

from fakes.answers import api_error
from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from gpuspawner.refusal import GPURefusal
from real_spawner import CPU, RealHub

NAME = "jupyter-ada"


class Machine(FakeMachine):
    """An engine inside of which an older create, that is not listed yet, has a name.

    Attributes:
        refusals: how many creates of that name are still refused for it.
        refused: how many were.
    """

    refusals = 0
    refused = 0

    def check_name(self, name: str) -> None:
        super().check_name(name)
        if name == NAME and self.refusals > self.refused:
            self.refused += 1
            raise api_error(409, f'Conflict. The container name "/{name}" is already in use')


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def hub(machine: Machine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


async def test_a_shortage_is_told_before_any_pull(hub: RealHub, machine: Machine) -> None:
    for number in range(4):
        await hub.start(f"user{number}")
    hub.config.GPUSpawner.image = "not-here-yet:1"
    asked = len(machine.calls)
    with pytest.raises(GPURefusal, match="in use"):
        await hub.start("late")
    assert not {"image", "pull", "create"} & set(machine.calls[asked:])
    assert hub.idle
    # Who has room is pulled for, so the assertion above can fail.
    await hub.start("cpu", CPU)
    assert {"image", "pull", "create"} <= set(machine.calls[asked:])


async def test_a_card_that_is_taken_during_the_pull_is_told_then_and_nothing_is_left(
    hub: RealHub, machine: Machine
) -> None:
    hub.config.GPUSpawner.image = "not-here-yet:1"
    with machine.gate("pull", "before") as gate:
        starting = hub.begin_start("ada")
        await in_thread(gate.wait_arrived)
        assert not len(hub.pool.attempts), "no card is held for a pull"
        for uuid in (d.uuid for d in hub.pool.prober.inventory.devices):
            machine.add(cards=(uuid,), state="running")
    with pytest.raises(GPURefusal) as refused:
        await starting
    assert refused.value.reason == "no-free-gpu"
    assert hub.idle
    assert "create" not in machine.calls


async def test_a_name_that_nothing_listed_has_is_waited_for(hub: RealHub, machine: Machine) -> None:
    machine.refusals = 2
    await hub.start("ada")
    assert machine.refused == 2
    assert [one.name for one in machine.containers.values()] == [NAME]


async def test_who_waits_for_a_name_may_cancel(hub: RealHub, machine: Machine) -> None:
    machine.refusals = 10**9
    starting = hub.begin_start("ada")
    await until(lambda: machine.refused > 1)
    await hub.stop("ada")
    assert starting.cancelled()
    await until(lambda: hub.idle)
    assert not machine.containers
    machine.refusals = 0
    await hub.start("ada")


# -- the last choice, where it can't be had any more -----------------------------------------------

CHOOSE: list[dict[str, Any]] = [
    {
        "display_name": "Teachers",
        "slug": "teachers",
        "groups": ["teachers"],
        "profile_options": {"size": {"choices": {"s": {}, "l": {}}}},
    },
    {"display_name": "Plain", "slug": "plain", "default": True},
]
LARGE = {"profile": "teachers", "size": "l"}


class Hub6:
    """A REST handler as JupyterHub 6 has it."""

    def __init__(self, sent: dict[str, str] | None) -> None:
        self.sent = sent

    def get_server_json_body(self) -> dict[str, Any]:
        return {"display_name": None, "user_options": self.sent}

    def get_json_body(self) -> dict[str, Any]:
        return {"user_options": self.sent}


class Hub5:
    """A REST handler as JupyterHub 5 has it."""

    def __init__(self, sent: dict[str, str] | None) -> None:
        self.sent = sent

    def get_json_body(self) -> dict[str, str] | None:
        return self.sent


class Page:
    """A handler of the hub's pages."""


def join(hub: RealHub, user: str, *groups: str) -> None:
    owner = hub.user(user).orm_user
    owner.groups = [orm.Group.find(hub.session, g) or orm.Group(name=g) for g in groups]
    hub.session.commit()


async def ask(
    hub: RealHub, handler: object, options: dict[str, str] | None = None
) -> dict[str, str]:
    """A start by a door, and its end: what was started."""
    started = dict((await hub.start("ada", options, handler=handler)).user_options)
    await hub.stop("ada")
    return started


@pytest.mark.parametrize("door", [Hub6, Hub5])
async def test_a_last_choice_that_is_not_open_any_more_gives_way_to_the_default(
    hub: RealHub, door: Callable[[dict[str, str] | None], object]
) -> None:
    hub.config.GPUSpawner.profile_list = CHOOSE
    join(hub, "ada", "teachers")
    assert await ask(hub, door(LARGE), LARGE) == LARGE
    assert await ask(hub, door(None)) == LARGE
    join(hub, "ada")
    # Named now, it is refused, every time, though it is what is stored.
    for _ in range(2):
        with pytest.raises(GPURefusal, match="open to other groups"):
            await ask(hub, door(LARGE), LARGE)
    assert await ask(hub, door(None)) == {"profile": "plain"}
    join(hub, "ada", "teachers")
    assert await ask(hub, door(LARGE), LARGE) == LARGE


async def test_a_page_without_a_form_sends_nothing_and_a_form_does(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = CHOOSE
    join(hub, "ada", "teachers")
    assert await ask(hub, Page(), LARGE) == LARGE
    join(hub, "ada")
    spawner = hub.spawner("ada")
    from_form = await spawner.options_from_form({"profile": ["teachers"]})
    with pytest.raises(GPURefusal, match="open to other groups"):
        await ask(hub, Page(), from_form)
    assert await ask(hub, Page()) == {"profile": "plain"}


async def test_of_a_last_choice_the_profile_stays_where_its_answer_is_gone(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = CHOOSE
    join(hub, "ada", "teachers")
    assert await ask(hub, Hub6(LARGE), LARGE) == LARGE
    hub.config.GPUSpawner.profile_list = [
        {**CHOOSE[0], "profile_options": {"size": {"choices": {"s": {}}}}},
        CHOOSE[1],
    ]
    assert await ask(hub, Hub6(None)) == {"profile": "teachers", "size": "s"}


async def test_what_was_stored_and_never_accepted_is_refused_once(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = CHOOSE
    plain = {"profile": "plain"}
    assert await ask(hub, Hub6(plain), plain) == plain
    hub.spawner("ada").orm_spawner.user_options = {"profile": "teachers"}  # as a PATCH does
    with pytest.raises(GPURefusal, match="open to other groups"):
        await ask(hub, Hub6(None))
    assert await ask(hub, Hub6(None)) == plain


async def test_whoever_may_have_nothing_is_told_so(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = CHOOSE[:1]
    join(hub, "ada", "teachers")
    assert await ask(hub, Hub6(LARGE), LARGE) == LARGE
    join(hub, "ada")
    with pytest.raises(GPURefusal, match="is open to you yet") as caught:
        await ask(hub, Hub6(None))
    assert caught.value.status_code == 403


async def test_after_a_refused_link_there_is_a_form_also_with_one_profile(hub: RealHub) -> None:
    hub.config.GPUSpawner.profile_list = CHOOSE
    page = Page()
    spawner = hub.spawner("ada")
    spawner.handler = page
    assert await spawner.get_options_form() == ""
    from_link = spawner.options_from_query({"profile": ["teachers"]})
    with pytest.raises(GPURefusal, match="open to other groups"):
        await hub.start("ada", from_link, handler=page)
    assert 'value="plain"' in await spawner.get_options_form()
    spawner.handler = Page()
    assert await spawner.get_options_form() == "", "another page, later"
