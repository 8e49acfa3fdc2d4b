"""Two hubs on one engine, with users of the same names: no card twice, nobody else's container."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from events import Overlaps
from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import until
from fakes.rows import HUB, OTHER_HUB
from gpu_hub import cards_in_use, containers, gpu_hub, inside
from gpuspawner.refusal import GPURefusal
from ground.engine import Engine
from ground.hub import Hub
from real_spawner import CPU, ONE, RealHub

USERS = ("ada", "ben", "cleo")
TURNS = 3


def come_and_go(hub: Hub, user: str) -> None:
    for _ in range(TURNS):
        hub.start_server(user, ONE, check=False)
        hub.wait(lambda: settled(hub, user), f"server of {user} ready or refused")
        if hub.server(user):
            hub.stop_server(user)
            hub.wait_stopped(user)


def settled(hub: Hub, user: str) -> bool:
    server = hub.server(user)
    return server is None or bool(server["ready"])


def exclusive(labels: Mapping[str, str]) -> Iterator[object]:
    """What one container has for itself: its cards, and being the server of its user."""
    yield from filter(None, labels["gpuspawner.devices"].split(","))
    yield tuple(labels[f"gpuspawner.{key}"] for key in ("hub", "user", "server"))


@pytest.mark.parametrize("engine", ["hook"], indirect=True)
def test_a_storm_of_two_hubs(engine: Engine, tiny_image: str, tmp_path: Path) -> None:
    """Each keeps one server; three users of each want the two cards left, again and again.

    Meanwhile one hub is killed and started again.
    """
    with ExitStack() as stack:
        stack.callback(engine.remove_containers)
        oracle = Overlaps(engine, exclusive)
        stack.callback(oracle.close)
        hubs = [
            stack.enter_context(gpu_hub(tmp_path / name, engine, tiny_image))
            for name in ("one", "two")
        ]
        for hub in hubs:
            hub.add_users("keeper", *USERS)
            hub.start_server("keeper", ONE)
            hub.wait_ready("keeper")
        kept = {row["Id"] for row in containers(engine)}

        with ThreadPoolExecutor(2 * len(USERS)) as pool:
            storm = [pool.submit(come_and_go, hub, user) for hub in hubs for user in USERS]
            for one in storm:
                one.result()
            storm = [pool.submit(come_and_go, hubs[1], user) for user in USERS]
            hubs[0].kill()
            hubs[0].start()
            for one in storm:
                one.result()

        # Both cards can be had, one by each; then there is none.
        for hub in hubs:
            hub.wait(lambda: len(containers(engine)) <= 3, "the storm is over")
            hub.start_server("ada", ONE)
            hub.wait_ready("ada")
        for hub in hubs:
            assert hub.start_server("ben", ONE, check=False).status_code == 503
        assert cards_in_use(engine) == dict.fromkeys(engine.uuids, 1)
        cards = [inside(hub, user)["env"] for hub in hubs for user in ("keeper", "ada")]
        assert {env["GPUSPAWNER_DEVICES"] for env in cards} == set(engine.uuids)

        # Each stops its own, and the other's of the same name goes on.
        hubs[0].stop_server("ada")
        hubs[0].wait_stopped("ada")
        assert inside(hubs[1], "ada")["env"] == cards[3]
        assert not kept & oracle.deaths
        for hub, user in ((hubs[0], "keeper"), (hubs[1], "keeper"), (hubs[1], "ada")):
            hub.stop_server(user)
            hub.wait_stopped(user)
        hubs[0].wait(lambda: not containers(engine), "nothing is left")
        assert not oracle.found


@pytest.mark.parametrize("seed", range(3))
async def test_storms_on_a_fake_engine(tmp_path: Path, seed: int) -> None:
    """The same with the calls of both hubs mixed at random, cancels, ends and restarts."""
    machine = FakeMachine(seed=seed)
    machine.jitter = random.Random(seed)
    dice = random.Random(seed)
    hubs = [
        RealHub(tmp_path, client=lambda: FakeClient(machine), hub_id=one)
        for one in (HUB, OTHER_HUB)
    ]
    kept = [(await hub.start("keeper")).object_id for hub in hubs]
    granted = 0

    async def come_and_go(hub: RealHub, user: str) -> None:
        nonlocal granted
        for _ in range(6):
            starting = hub.begin_start(user, CPU if dice.random() < 0.1 else ONE)
            if dice.random() < 0.2:
                await asyncio.sleep(dice.random() * 0.02)
                starting.cancel()
            try:
                await starting
            except (GPURefusal, asyncio.CancelledError):
                await asyncio.sleep(dice.random() * 0.01)
            else:
                granted += 1
                if dice.random() < 0.3:
                    machine.rm_f(hub.spawner(user).object_id)
                    await hub.poll(user)
                else:
                    await hub.stop(user)

    for _ in range(2):
        await asyncio.gather(*(come_and_go(hub, user) for hub in hubs for user in USERS))
        await hubs[0].restart()
    for hub in hubs:
        await hub.pool.cleaner.clean()
    await until(lambda: all(hub.idle for hub in hubs) and set(machine.containers) == set(kept))
    assert granted
    assert not machine.violations
    for hub in hubs:
        assert await hub.poll("keeper") is None
        await hub.start("ada")
    with pytest.raises(GPURefusal, match="in use"):
        await hubs[0].start("ben")
    for hub in hubs:
        hub.close()
