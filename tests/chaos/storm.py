"""One storm from beginning to end."""

from __future__ import annotations

import threading
import time
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
from .noise import Doing, Lane, Threads
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


def storm(plan: Plan, folder: Path) -> Oracle:
    """Raise a storm in ``folder``; what was seen is in the oracle."""
    with ExitStack() as stack:
        uuids = simulated_uuids(CARDS)
        engine = Engine(folder / "e", plan.kind, uuids=uuids, live_restore=True)
        stack.enter_context(engine)
        tiny = image.load_tiny(engine.client)
        wire = Wire(engine.socket)
        oracle = Oracle(uuids, plan.created_grace_seconds)
        injectors = [
            stack.enter_context(Injector(engine.folder / f"{number}.sock", engine.socket))
            for number in range(HUBS)
        ]
        hubs = [
            gpu_hub(
                folder / f"hub{number}", engine, tiny, plan.config,
                env={
                    "DOCKER_HOST": injector.url,
                    # A killed hub's proxy lives on: the next hub must be able to speak to it.
                    "CONFIGPROXY_AUTH_TOKEN": "chaos",
                },
            )
            for number, injector in enumerate(injectors)
        ]  # fmt: skip
        for hub in hubs:
            stack.callback(hub.stop, START_SECONDS)
            hub.start(START_SECONDS)
            hub.add_users(*plan.names)
        stack.enter_context(Watch(wire, oracle))
        _make_noise(plan, engine, hubs, injectors, tiny, wire, oracle)
        ends = Ends(engine, hubs, wire, oracle, deadline_seconds=plan.deadline_seconds)
        ends.end_forgotten()
        ends.agree()
        ends.stop_all()
        ends.grant_all(plan.names)
        ends.stop_all()
        for hub in hubs:
            hub.stop(START_SECONDS)
            for fault in logs.faults(hub.log):
                oracle.violate("fault in a hub's log", fault)
    return oracle


def _make_noise(
    plan: Plan,
    engine: Engine,
    hubs: list[Hub],
    injectors: list[Injector],
    tiny: str,
    wire: Wire,
    oracle: Oracle,
) -> None:
    """Users and trouble, for as long as planned; afterwards all is up and nothing is done."""
    ended, begun = threading.Event(), time.monotonic()
    doing = Doing(oracle, ended)
    hands = Hands(engine, tiny, wire, doing, plan.users)
    outages = EngineOutages(engine, doing)
    strange = [
        *(hands.remove, hands.stop, hands.kill, hands.restart),
        *(hands.pause, hands.update, hands.rename),
    ]
    lanes = {
        "engine": ([outages.kill, outages.restart, outages.freeze], 3.0),
        "hands": (strange, 0.3),
        "outsiders": ([hands.outsider], 0.6),
        "more outsiders": ([hands.outsider], 0.6),
    }
    for number, hub in enumerate(hubs):
        trouble = HubOutages(hub, str(number), doing)
        lanes[f"hub {number}"] = ([trouble.kill, trouble.end], 4.0)
        line = LineFaults(injectors[number], str(number), doing)
        lanes[f"line {number}"] = ([line.fault, line.fault, line.cut, line.down], 1.0)
    troubles = [
        Lane(
            name, deeds, str(plan.seed),
            gap_seconds=factor * plan.gap_seconds, ended=ended,
        ).run
        for name, (deeds, factor) in lanes.items()
    ]  # fmt: skip
    people = [
        Person(
            hub, user, f"{plan.seed}/{number}",
            think_seconds=plan.think_seconds, ended=ended, count=oracle.count,
        ).live
        for number, hub in enumerate(hubs)
        for user in plan.names
    ]  # fmt: skip
    with Threads(people, ended):
        # Trouble has something to strike from the beginning.
        while len(oracle.granted) < CARDS // 2 and not ended.wait(0.1):
            if time.monotonic() > begun + START_SECONDS:
                raise GroundError("nobody gets a server")
        with Threads(troubles, ended):
            ended.wait(plan.seconds)
    hands.unpause_all()
    hands.end_outsiders()
