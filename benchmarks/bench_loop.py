"""How long the hub's event loop is blocked, GPUSpawner beside stock DockerSpawner.

Usage: ``python benchmarks/bench_loop.py [--rounds N] [--debug]``. Two things are measured in each
hub. *Delay*: a task sleeps 5 ms again and again; what it sleeps too long is the time in which the
hub answers nobody, be it that many steps are due at once or that the machine is busy. *Step*:
processor time of one callback or one piece of a coroutine between two awaits; a long one is
somebody's fault. ``--debug`` has asyncio name every step of 50 ms or more in the hubs' logs and
prints them (it slows everything else).

The hubs take turns. Stock refuses in a pre_spawn_hook at once. Exits with status 1 if a step of
ours is over the target and over stock's longest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ground_bench import CPU, ONE, heading, load_image, ours, private_engine, stock

from ground.hub import Hub
from standin import FakeDriver, build, compiler

TARGET_MS = 50.0
#: In the hub's configuration, which is read inside the running event loop.
WATCH = """
import asyncio, json, pathlib, signal, time

_lags, _steps = [], []

async def _watch():
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.005)
        _lags.append(1000 * (time.perf_counter() - begun) - 5)

def _timed(handle, run=asyncio.Handle._run):
    used = time.thread_time()
    run(handle)
    _steps.append(1000 * (time.thread_time() - used))

def _dump():
    path = pathlib.Path("watch.json")
    path.with_suffix(".new").write_text(json.dumps([_lags, _steps]))
    path.with_suffix(".new").rename(path)
    _lags.clear()
    _steps.clear()

asyncio.Handle._run = _timed
_loop = asyncio.get_running_loop()
_loop.add_signal_handler(signal.SIGUSR2, _dump)
_watching = _loop.create_task(_watch())
"""
DEBUG = """
_loop.set_debug(True)
_loop.slow_callback_duration = 0.05
"""
USERS = [f"student{n}" for n in range(8)]


class Watched:
    """A hub whose event loop is watched, and people at its pages."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.students = [hub.login(user) for user in USERS]

    def watched(self) -> tuple[list[float], list[float]]:
        """Delays and steps since the last call, in milliseconds."""
        path: Path = self.hub.folder / "watch.json"
        path.unlink(missing_ok=True)
        os.kill(self.hub.pid, signal.SIGUSR2)
        self.hub.wait(path.exists, "the watch writes its delays")
        lags, steps = json.loads(path.read_text())
        return lags, steps


def spawns(watched: Watched) -> None:
    """Eight servers at once, four of them with a card."""
    with ThreadPoolExecutor(8) as pool:
        wanted = [ONE] * 4 + [CPU] * 4  # stock gives all of them its card
        list(pool.map(watched.hub.start_server, USERS, wanted))


def stops(watched: Watched) -> None:
    """Those eight stopped at once."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(watched.hub.stop_server, USERS))
        list(pool.map(watched.hub.wait_stopped, USERS))


def forms(watched: Watched) -> None:
    """Eight people load the form five times each."""
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for page in pool.map(lambda student: student.get_form(), watched.students):
                assert page.status_code == 200, page.text


def refusals(watched: Watched) -> None:
    """Eight people ask ten times each for more cards than there are."""

    def ask(user: str) -> None:
        answer = watched.hub.start_server(user, {"profile": "too-many"}, check=False)
        assert answer.status_code == 503, answer.text

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            list(pool.map(ask, USERS))


PROFILES = """
c.GPUSpawner.max_gpus_per_user = 0
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "Five GPUs", "slug": "too-many", "gpu": {"count": 5}},
    {"display_name": "CPU only", "slug": "cpu"},
]
"""
FORM = """
from jupyterhub.spawner import SpawnException

def refuse(spawner):
    if spawner.user_options["profile"] == "too-many":
        raise SpawnException("no", reason="full", status_code=503)

c.Spawner.pre_spawn_hook = refuse
c.DockerSpawner.options_form = "<label>Size <input name='size' value='small'></label>"
"""


def main(rounds: int, *, debug: bool) -> int:
    phases: dict[str, Callable[[Watched], None]] = {
        "8 spawns at once": spawns,
        "8 stops at once": stops,
        "40 form loads": forms,
        "80 refusals": refusals,
    }
    lags: dict[tuple[str, str], list[float]] = defaultdict(list)
    steps: dict[tuple[str, str], list[float]] = defaultdict(list)
    watch = WATCH + (DEBUG if debug else "")
    with private_engine() as (engine, folder), contextlib.ExitStack() as stack:
        print(heading(engine))
        name = load_image(engine, "tiny")
        extra, environment = "", {}
        if compiler():
            extra = 'c.GPUPool.inventory = "nvml"\n'
            environment = FakeDriver(build(folder / "driver")).environment({})
        our_hub = ours(folder / "ours", engine, name, watch + PROFILES + extra, env=environment)
        stock_hub = stock(folder / "stock", engine, name, watch + FORM)
        hubs = {
            "stock": Watched(stack.enter_context(stock_hub)),
            "ours": Watched(stack.enter_context(our_hub)),
        }
        for turn in range(rounds):
            # One hub at a time: by stock's rule, two hubs with one user's name share a container.
            for which in sorted(hubs, reverse=bool(turn % 2)):
                for phase, act in phases.items():
                    hubs[which].watched()
                    act(hubs[which])
                    time.sleep(0.05)  # what trails behind the last answer counts too
                    late, took = hubs[which].watched()
                    lags[phase, which] += late
                    steps[phase, which] += took
        if debug:
            for which, watched in hubs.items():
                slow = [line for line in watched.hub.log.splitlines() if " took 0." in line]
                print(f"{which}: {len(slow)} slow steps", *slow[-20:], sep="\n  ")
    print(f"{rounds} rounds; milliseconds")
    print(f"  {'':18} {'':6} {'delay: max':>10} {'99 %':>7} {'step: max':>12} {'99 %':>7}")
    most: dict[str, float] = defaultdict(float)
    for (phase, which), late in sorted(lags.items()):
        took = steps[phase, which]
        most[which] = max(most[which], *took)
        print(
            f"  {phase:18} {which:6} {max(late):10.1f} {_percentile(late):7.1f} "
            f"{max(took):12.1f} {_percentile(took):7.2f}"
        )
    print(f"longest step: ours {most['ours']:.1f}, stock {most['stock']:.1f}; target {TARGET_MS}")
    return int(most["ours"] > max(TARGET_MS, most["stock"]))


def _percentile(values: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--debug", action="store_true")
    arguments = parser.parse_args()
    sys.exit(main(arguments.rounds, debug=arguments.debug))
