"""Limits on the real spawner: the hub's groups, named servers, forms, and who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm
from sqlalchemy import event

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from gpuspawner.refusal import GPURefusal
from real_spawner import CPU, ONE, RealHub

PROFILES: list[dict[str, Any]] = [
    {"display_name": "One GPU", "gpu": {"count": 1}},
    {"display_name": "Two or one", "slug": "two", "gpu": [{"count": 2}, {"count": 1}]},
    {"display_name": "CPU", "slug": "cpu", "max_servers_per_user": 1},
    {"display_name": "Large", "slug": "large", "gpu": {"count": 1}, "max_gpus": 1},
]


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def hub(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine), inventory={"simulated": 8})
    made.config.GPUSpawner.profile_list = PROFILES
    made.config.GPUSpawner.max_gpus_per_user = {"*": 2, "research": 4}
    made.config.GPUSpawner.max_gpus_per_group = {"students": 3, "chess": 2}
    yield made
    made.close()


def join(hub: RealHub, group: str, *names: str) -> None:
    found = orm.Group.find(hub.session, group)
    if found is None:
        found = orm.Group(name=group)
        hub.session.add(found)
    for name in names:
        found.users.append(hub.user(name).orm_user)
    hub.session.commit()


async def refused(hub: RealHub, name: str, options: dict[str, str] = ONE, server: str = "") -> Any:
    with pytest.raises(GPURefusal) as caught:
        await hub.start(name, options, server)
    assert caught.value.reason == "gpu-quota"
    return caught.value


async def test_a_group_together_and_nobody_is_named(
    hub: RealHub, caplog: pytest.LogCaptureFixture
) -> None:
    join(hub, "students", "ada", "ben", "cleopatra")
    await hub.start("cleopatra")
    await hub.start("cleopatra", ONE, "more")
    await hub.start("ada")
    refusal = await refused(hub, "ben")
    assert refusal.jupyterhub_message == (
        'Your group "students" may use 3 GPUs at a time, and 3 are in use. '
        "You can start without a GPU, or try again later."
    )
    assert "cleopatra/more (1)" in caplog.text
    assert "GPUSpawner.max_gpus_per_group allows group 'students' 3" in caplog.text
    form = await hub.spawner("ben")._form()
    assert "and 3 are in use." in form
    assert "cleopatra" not in form
    await hub.start("ben", CPU)
    await hub.stop("ada")
    await until(lambda: hub.idle)
    await hub.start("ben", ONE, "now")


async def test_every_group_of_a_user_counts(hub: RealHub) -> None:
    join(hub, "students", "ada", "ben")
    join(hub, "chess", "ada", "dan")
    await hub.start("dan")
    await hub.start("dan", ONE, "b")
    assert '"chess"' in (await refused(hub, "ada")).jupyterhub_message
    await hub.start("ben")  # is in no chess club, so what dan has does not count
    await hub.start("ben", ONE, "b")


async def test_who_leaves_a_group_is_free_of_it(hub: RealHub) -> None:
    join(hub, "chess", "ada", "ben")
    await hub.start("ben")
    await hub.start("ben", ONE, "b")
    await refused(hub, "ada")
    group = orm.Group.find(hub.session, "chess")
    group.users.remove(hub.user("ada").orm_user)
    hub.session.commit()
    await hub.start("ada")


async def test_servers_of_one_who_was_renamed_count_for_the_group(hub: RealHub) -> None:
    join(hub, "chess", "ada", "ben")
    await hub.start("ben")
    await hub.start("ben", ONE, "b")
    hub.user("ben").name = "benedict"
    hub.session.commit()
    await refused(hub, "ada")


async def test_the_highest_of_a_users_groups_counts(hub: RealHub) -> None:
    join(hub, "research", "ada")
    for name in ("a", "b", "c", "d"):
        await hub.start("ada", ONE, name)
    assert "4 GPUs" in (await refused(hub, "ada")).jupyterhub_message
    for name in ("a", "b"):
        await hub.start("ben", ONE, name)
    assert "2 GPUs" in (await refused(hub, "ben")).jupyterhub_message


async def test_a_fallback_within_the_limit_is_taken(hub: RealHub) -> None:
    first = await hub.start("ada", {"profile": "two"})
    assert len(first.devices) == 2
    await hub.stop("ada")
    await hub.start("ada", ONE, "other")
    second = await hub.start("ada", {"profile": "two"})
    assert len(second.devices) == 1


async def test_a_profile_together(hub: RealHub) -> None:
    await hub.start("ada", {"profile": "large"})
    refusal = await refused(hub, "ben", {"profile": "large"})
    assert refusal.jupyterhub_message.startswith('Users of "Large" may use 1 GPU at a time')
    await hub.start("ben")


async def test_servers_of_a_profile_without_a_gpu(hub: RealHub) -> None:
    await hub.start("ada", CPU, "notes")
    refusal = await refused(hub, "ada", CPU)
    assert refusal.jupyterhub_message == (
        'You may have one server of "CPU" at a time, and you have it: your server "notes". '
        "Stop that server first."
    )
    form = await hub.spawner("ada")._form()
    assert "you have it: your server &#34;notes&#34;." in form
    await hub.start("ben", CPU)
    await hub.stop("ada", "notes")
    await hub.start("ada", CPU)


@pytest.mark.parametrize("options", [ONE, CPU])
async def test_a_server_that_is_started_anew_is_not_counted_twice(
    hub: RealHub, machine: FakeMachine, options: dict[str, str]
) -> None:
    hub.config.GPUSpawner.max_gpus_per_user = 1
    for _ in range(3):
        await hub.start("ada", options)
        await hub.stop("ada")
    spawner = await hub.start("ada", options)
    machine.exit(spawner.object_id)
    await hub.poll("ada")
    await hub.start("ada", options)
    await hub.restart()
    assert await hub.poll("ada") is None
    await hub.stop("ada")
    await hub.start("ada", options)


async def test_kept_containers_that_start_again_at_once_stay_within_the_limit(
    hub: RealHub, machine: FakeMachine
) -> None:
    hub.config.GPUSpawner.remove = False
    hub.config.GPUSpawner.profile_list = [{"display_name": "CPU", "slug": "cpu"}]
    for name in ("a", "b", "c"):
        await hub.start("ada", CPU, name)
        await hub.stop("ada", name)
    kept = set(machine.containers)
    hub.config.GPUSpawner.profile_list = PROFILES
    with machine.gate("start", "before") as gate:
        tasks = [hub.begin_start("ada", CPU, name) for name in ("a", "b", "c")]
        await in_thread(gate.wait_arrived)
        # All have been admitted by now, and one is being started.
        await until(lambda: sum(t.done() for t in tasks) == 2)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(r, GPURefusal) for r in results) == 2
    assert len(machine.live()) == 1
    assert set(machine.containers) == kept
    assert hub.idle


async def test_a_kept_container_that_starts_again_is_counted_once(
    hub: RealHub, machine: FakeMachine
) -> None:
    hub.config.GPUSpawner.remove = False
    hub.config.GPUSpawner.profile_list = [{**PROFILES[2], "max_servers_per_user": 2}]
    await hub.start("ada", CPU, "a")
    await hub.stop("ada", "a")
    with machine.gate("start", "after") as gate:
        first = hub.begin_start("ada", CPU, "a")
        await in_thread(gate.wait_arrived)  # it runs, and its start is not over
        second = hub.begin_start("ada", CPU, "b")
        await until(lambda: machine.calls.count("start") == 3 or second.done())
    await asyncio.gather(first, second)
    assert len(machine.live()) == 2


async def test_a_hundred_members_are_not_asked_for_one_by_one(hub: RealHub) -> None:
    join(hub, "students", *(f"user{i}" for i in range(100)))
    spawner = hub.spawner("user7")
    hub.session.expire_all()
    asked: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement)

    event.listen(hub.session.get_bind(), "before_cursor_execute", note)
    demand = spawner.demand(spawner.profiles.profiles[0])
    assert 0 < len(asked) < 10, asked
    assert [len(x.users or ()) for x in demand.limits if x.kind == "group"] == [100]
