"""One storm from beginning to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gpu_hub import gpu_hub
from ground import image
from ground.cards import simulated_uuids
from ground.engine import Engine, Kind
from ground.hub import Hub
from ground.injector import Injector
from ground.machine import GroundError

from . import logs
from .crowd import Person
from .ends import Ends
from .hands import Hands
from .noise import Deed, Doing, Lane, Threads
from .oracle import Oracle
from .outages import START_SECONDS, EngineOutages, HubOutages, LineFaults
from .watch import Watch
from .wire import Wire

CARDS, HUBS = 8, 2

_CONFIG = """
c.GPUPool.inventory = {{"simulated": {cards}}}
c.GPUPool.created_grace_seconds = {created_grace}
c.GPUPool.orphan_grace_seconds = {orphan_grace}
c.GPUPool.clean_interval_seconds = {clean_interval}
c.GPUSpawner.max_gpus_per_user = 3
c.GPUSpawner.http_timeout = {http_timeout}
c.GPUSpawner.profile_list = [
    {{"display_name": "One GPU", "slug": "one-gpu", "gpu": {{"count": 1}}}},
    {{"display_name": "Two GPUs", "slug": "two-gpus", "gpu": {{"count": 2}}}},
    {{"display_name": "No GPU", "slug": "cpu"}},
]
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 2}}
c.JupyterHub.load_roles[0]["scopes"].append("admin:server_state")
import gpuspawner
gpuspawner.configure(c)
"""


@dataclass(frozen=True)
class Plan:
    """How long and how wild.

    Attributes:
        gap_seconds: mean time between two deeds of one lane.
        deadline_seconds: for each check at the end.
    """

    seed: int
    seconds: float
    kind: Kind = "hook"
    users: int = 20
    think_seconds: float = 8.0
    gap_seconds: float = 15.0
    created_grace_seconds: float = 30.0
    orphan_grace_seconds: float = 30.0
    clean_interval_seconds: float = 5.0
    http_timeout_seconds: float = 30.0
    deadline_seconds: float = 300.0

    @property
    def names(self) -> list[str]:
        return [f"user{number}" for number in range(self.users)]

    @property
    def config(self) -> str:
        return _CONFIG.format(
            cards=CARDS,
            created_grace=self.created_grace_seconds,
            orphan_grace=self.orphan_grace_seconds,
            clean_interval=self.clean_interval_seconds,
            http_timeout=self.http_timeout_seconds,
        )


@dataclass(frozen=True)
class Scene:
    """What the storm goes over, and who watches it."""

    engine: Engine
    hubs: Sequence[Hub]
    injectors: Sequence[Injector]
    wire: Wire
    oracle: Oracle


def storm(plan: Plan, folder: Path) -> Oracle:
    """Raise a storm in ``folder``; what was seen is in the oracle."""
    with ExitStack() as stack:
        uuids = simulated_uuids(CARDS)
        engine = Engine(folder / "e", plan.kind, uuids=uuids, live_restore=True)
        stack.enter_context(engine)
        tiny = image.load_tiny(engine.client)
        sockets = [engine.folder / f"{number}.sock" for number in range(HUBS)]
        injectors = [stack.enter_context(Injector(path, engine.socket)) for path in sockets]
        hubs = []
        for number, injector in enumerate(injectors):
            # A killed hub's proxy lives on: the next hub must be able to speak to it.
            env = {"DOCKER_HOST": injector.url, "CONFIGPROXY_AUTH_TOKEN": "chaos"}
            hub = gpu_hub(folder / f"hub{number}", engine, tiny, plan.config, env=env)
            stack.callback(hub.stop, START_SECONDS)
            hubs.append(hub)
        with ThreadPoolExecutor(HUBS) as pool:
            list(pool.map(lambda hub: hub.start(START_SECONDS), hubs))
        for hub in hubs:
            hub.add_users(*plan.names)
        oracle = Oracle(uuids, plan.created_grace_seconds)
        scene = Scene(engine, hubs, injectors, Wire(engine.socket), oracle)
        stack.enter_context(Watch(scene.wire, oracle))
        ended = threading.Event()
        doing = Doing(oracle, ended)
        hands = Hands(engine, tiny, scene.wire, doing, plan.users)
        with Threads(_people(plan, scene, ended), ended):
            _wait_for_servers(oracle, ended)
            with Threads(_troubles(plan, scene, hands, doing), ended):
                ended.wait(plan.seconds)
        _check(plan, scene, hands)
    return oracle


def _wait_for_servers(oracle: Oracle, ended: threading.Event) -> None:
    """Trouble has something to strike from the beginning."""
    deadline = time.monotonic() + START_SECONDS
    while len(oracle.granted) < CARDS // 2 and not ended.wait(0.1):
        if time.monotonic() > deadline:
            raise GroundError("nobody gets a server")


def _people(plan: Plan, scene: Scene, ended: threading.Event) -> list[Callable[[], None]]:
    return [
        Person(
            hub,
            user,
            f"{plan.seed}/{number}",
            think_seconds=plan.think_seconds,
            ended=ended,
            count=scene.oracle.count,
        ).live
        for number, hub in enumerate(scene.hubs)
        for user in plan.names
    ]


def _troubles(plan: Plan, scene: Scene, hands: Hands, doing: Doing) -> list[Callable[[], None]]:
    outages = EngineOutages(scene.engine, doing)
    strange: list[Deed] = [hands.remove, hands.stop, hands.kill, hands.restart]
    strange += [hands.pause, hands.update, hands.rename]
    # Deeds, and how much rarer or more frequent than others they are.
    lanes: dict[str, tuple[list[Deed], float]] = {
        "engine": ([outages.kill, outages.restart, outages.freeze], 3.0),
        "hands": (strange, 0.3),
        "outsiders": ([hands.outsider], 0.6),
        "more outsiders": ([hands.outsider], 0.6),
    }
    for number, (hub, injector) in enumerate(zip(scene.hubs, scene.injectors, strict=True)):
        trouble = HubOutages(hub, str(number), doing)
        line = LineFaults(injector, str(number), doing)
        lanes[f"hub {number}"] = ([trouble.kill, trouble.end], 4.0)
        lanes[f"line {number}"] = ([line.fault, line.fault, line.cut, line.down], 1.0)
    return [
        Lane(
            name, deeds, str(plan.seed), gap_seconds=factor * plan.gap_seconds, ended=doing.ended
        ).run
        for name, (deeds, factor) in lanes.items()
    ]


def _check(plan: Plan, scene: Scene, hands: Hands) -> None:
    """All is calm: what must be true now."""
    ends = Ends(
        scene.engine, scene.hubs, scene.wire, scene.oracle, deadline_seconds=plan.deadline_seconds
    )
    ends.until_none(hands.undo)
    ends.end_forgotten()
    ends.agree()
    ends.stop_all()
    ends.grant_all(plan.names)
    ends.stop_all()
    with ThreadPoolExecutor(HUBS) as pool:
        list(pool.map(lambda hub: hub.stop(START_SECONDS), scene.hubs))
    for hub in scene.hubs:
        for fault in logs.faults(hub.log):
            if fault.ours:
                scene.oracle.violate("fault in a hub's log", fault.text)
            else:
                scene.oracle.count(f"in a hub's log, not ours: {fault.last[:80]}")
