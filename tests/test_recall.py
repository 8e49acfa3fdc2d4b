"""After a restart a server is known again, also where the hub's database tells little of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from fakes.rows import OTHER_HUB, ours
from gpuspawner.recall import api_token, recall
from gpuspawner.wiring import containers_in_database
from real_spawner import CPU, ONE, RealHub


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def hub(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


def stock(spawner: Any) -> dict[str, Any]:
    """What DockerSpawner itself would have stored."""
    return {"object_id": spawner.object_id, "object_name": spawner.object_name}


def nothing(_: Any) -> None:
    """As after a kill in mid-start."""


def bare(spawner: Any) -> dict[str, Any]:
    """Ours, without the options."""
    state: dict[str, Any] = spawner.get_state()
    del state["gpuspawner"]["options"]
    return state


@pytest.mark.parametrize("server", ["", "training"])
@pytest.mark.parametrize("left", [stock, nothing, bare])
async def test_labels_tell_what_the_database_does_not(
    hub: RealHub, machine: FakeMachine, left: Callable[[Any], Any], server: str
) -> None:
    before = await hub.start("ada", ONE, server)
    known = (before.lease, before.devices, before.profile_slug, before.object_id)
    before.orm_spawner.state, before.orm_spawner.user_options = left(before), None
    hub.session.commit()
    await hub.restart()

    after = hub.spawner("ada", server)
    assert after is not before
    assert (after.lease, after.devices, after.profile_slug, after.object_id) == known
    assert after.user_options == after.last_options == after.orm_spawner.user_options == ONE
    assert hub.pool.known() == {after.lease}
    assert hub.pool.owners() == {after.lease: ("ada", server)}
    assert await hub.poll("ada", server) is None
    await hub.stop("ada", server)
    await until(lambda: hub.idle)
    assert not machine.containers


@pytest.mark.parametrize("left", [stock, nothing, bare])
async def test_what_the_database_tells_is_believed(
    hub: RealHub, left: Callable[[Any], Any]
) -> None:
    before = await hub.start("ada", CPU)
    before.orm_spawner.state, before.orm_spawner.user_options = left(before), ONE
    hub.session.commit()
    await hub.restart()
    assert hub.spawner("ada").user_options == ONE
    assert hub.spawner("ada").last_options == CPU


async def test_the_token_of_an_adopted_server_is_in_its_environment(hub: RealHub) -> None:
    before = await hub.start("ada")
    token, before.orm_spawner.state = before.api_token, None
    assert token
    hub.session.commit()
    await hub.restart()
    assert hub.spawner("ada").api_token == token


async def test_of_two_that_could_be_it_none_is_taken(hub: RealHub, machine: FakeMachine) -> None:
    before = await hub.start("ada")
    [one] = machine.containers.values()
    before.orm_spawner.state = None
    hub.session.commit()
    machine.add(state="running", labels=one.labels | {"gpuspawner.lease": "0" * 32})
    await hub.restart()
    assert hub.spawner("ada").server is None


@pytest.mark.parametrize("wrong", [{"hub": OTHER_HUB}, {"user": "ben"}, {"server": "other"}])
async def test_anothers_is_not_adopted(
    hub: RealHub, machine: FakeMachine, wrong: dict[str, str]
) -> None:
    before = await hub.start("ada")
    [one] = machine.containers.values()
    one.labels.update({f"gpuspawner.{key}": value for key, value in wrong.items()})
    before.orm_spawner.state = None
    hub.session.commit()
    await hub.restart()
    assert hub.spawner("ada").server is None
    assert one.live


async def test_one_that_came_after_this_process_is_a_twins(
    hub: RealHub, machine: FakeMachine
) -> None:
    """A hub with a copy of our id has started a server of the same user."""
    before = await hub.start("ada")
    [one] = machine.containers.values()
    before.orm_spawner.state = None
    hub.session.commit()
    machine.rm_f(one.id)
    hub.kill()
    hub._begin()
    await hub.pool.engine.listing()
    machine.add(state="running", labels=one.labels)
    assert await hub.spawner("ada").poll() == 0


@pytest.fixture
async def timed(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    """A hub that goes by the machine's clock."""
    clock = {"clock": lambda: machine.steady}
    made = RealHub(tmp_path, client=lambda: FakeClient(machine), engine=clock)
    yield made
    made.close()


async def test_what_the_cleaner_stops_is_not_adopted(timed: RealHub, machine: FakeMachine) -> None:
    """Else a server would be shown as running for the moment until its removal is carried out."""
    before = await timed.start("ada")
    before.orm_spawner.state = None
    timed.session.commit()
    timed.kill()
    timed._begin()
    await timed.pool.engine.listing()
    machine.advance(601)
    with machine.gate("remove", "before") as gate:
        await timed.pool.cleaner.clean()
        await in_thread(gate.wait_arrived)
        assert await timed.spawner("ada").poll() == 0
        assert not timed.pool.known()
    await until(lambda: not machine.containers)


async def test_what_is_adopted_is_adopted_as_a_whole(hub: RealHub, machine: FakeMachine) -> None:
    """Else, after one lost answer, its token would outlive the server: nobody could revoke it."""
    before = await hub.start("ada")
    before.orm_spawner.state = None
    hub.session.commit()
    hub.kill()
    hub._begin()
    after = hub.spawner("ada")
    assert after.api_token != before.api_token
    machine.fault("inspect", "unreachable")
    assert await after.poll() is None
    assert await after.poll() is None
    assert (after.lease, after.api_token) == (before.lease, before.api_token)


async def test_a_row_without_a_state_names_no_container(hub: RealHub) -> None:
    """A start that was cut off has a row in the database: that protects nothing."""
    named = (await hub.start("ada")).object_id
    for user, state in (("ben", None), ("cleo", {}), ("dan", {"object_id": ""})):
        hub.spawner(user).orm_spawner.state = state
    hub.session.commit()
    assert containers_in_database(hub.session) == {named}


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"profile": 3}', "null"])
def test_options_that_nobody_can_read_are_none(text: str) -> None:
    assert recall(ours("GPU-0", options=text)).options is None


def test_labels_and_environment() -> None:
    found = recall(ours("GPU-0,GPU-1", profile="two", options='{"profile": "two"}', lease="L"))
    assert (found.lease, found.devices, found.profile) == ("L", ("GPU-0", "GPU-1"), "two")
    assert found.options == {"profile": "two"}
    assert recall(ours()).devices == ()
    assert api_token({"Config": {"Env": ["A=b", "JUPYTERHUB_API_TOKEN=x=y"]}}) == "x=y"
    assert api_token(None) == api_token({"Config": {"Env": None}}) == ""
