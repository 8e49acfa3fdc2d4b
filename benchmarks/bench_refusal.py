"""How long the hub takes to refuse when no GPU is free, and what it costs.

Usage: ``python benchmarks/bench_refusal.py [--refusals N] [--others N]``. Beside it stands
what JupyterHub itself needs: a stock DockerSpawner whose pre_spawn_hook says no at once. The two
take turns, so that the difference is ours. ``--others`` adds running containers of
somebody else, which every decision must look at. "In the hub" is what the hub's own log says for
the request; the rest is the proxy and this client. Exits with status 1 over the target.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ground_bench import (
    ONE,
    figures,
    heading,
    load_image,
    ours,
    private_engine,
    processor_seconds,
    stock,
)

from ground.hub import Hub

TARGET_MS = 50.0
CROWD = [f"crowd{n}" for n in range(16)]
REFUSE = """
from jupyterhub.spawner import SpawnException

def refuse(spawner):
    raise SpawnException("no", reason="full", status_code=503)

c.Spawner.pre_spawn_hook = refuse
"""
_LOGGED = re.compile(r" 503 POST \S+ .*? ([\d.]+)ms")


def main(refusals: int, others: int) -> int:
    with private_engine() as (engine, folder):
        print(heading(engine))
        name = load_image(engine, "tiny")
        for _ in range(others):
            engine.client.start(engine.client.create_container(name, ["sleep", "3600"])["Id"])
        hubs = {
            "ours": ours(folder / "ours", engine, name, 'c.GPUPool.inventory = {"simulated": 1}'),
            "stock": stock(folder / "stock", engine, name, REFUSE),
        }
        inside: dict[str, list[float]] = {}
        whole: dict[str, list[float]] = {which: [] for which in hubs}
        busy = dict.fromkeys(hubs, 0.0)
        with contextlib.ExitStack() as stack:
            for hub in hubs.values():
                stack.enter_context(hub)
                hub.add_users("holder", "late", *CROWD)
            hubs["ours"].start_server("holder", ONE)
            for hub in hubs.values():
                refuse(hub, "late")
            logged = {which: len(hub.log) for which, hub in hubs.items()}
            for _ in range(refusals):
                for which, hub in hubs.items():
                    used, begun = processor_seconds(hub.pid), time.perf_counter()
                    refuse(hub, "late")
                    whole[which].append(1000 * (time.perf_counter() - begun))
                    busy[which] += processor_seconds(hub.pid) - used
            for which, hub in hubs.items():
                found = _LOGGED.findall(hub.log[logged[which] :])
                inside[which] = [float(milliseconds) for milliseconds in found]
            rates = {which: rate(hub, refusals) for which, hub in hubs.items()}
            hubs["ours"].stop_server("holder")
            hubs["ours"].wait_stopped("holder")
    print(f"{refusals} refusals, 1 card held, {others} containers of others")
    for which in hubs:
        cpu = 1000 * busy[which] / refusals
        print(f"  {which:5} in the hub  {figures(inside[which])}   hub {cpu:.1f} ms CPU")
        print(f"  {which:5} whole       {figures(whole[which])}   crowd {rates[which]:.0f} per s")
    added = statistics.median(inside["ours"]) - statistics.median(inside["stock"])
    print(f"ours beyond the hub's own: {added:.1f} ms, target {TARGET_MS:.0f} ms")
    return int(added > TARGET_MS)


def refuse(hub: Hub, user: str) -> None:
    answer = hub.start_server(user, ONE, check=False)
    assert answer.status_code == 503, answer.text


def rate(hub: Hub, refusals: int) -> float:
    """Refusals a second with all of a crowd asking at once."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(CROWD)) as pool:
        users = (CROWD[n % len(CROWD)] for n in range(refusals))
        list(pool.map(lambda user: refuse(hub, user), users))
    return refusals / (time.perf_counter() - begun)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--refusals", type=int, default=100)
    parser.add_argument("--others", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(main(arguments.refusals, arguments.others))
