"""From request to ready, GPUSpawner beside stock DockerSpawner on one engine, taking turns.

Usage: ``python benchmarks/bench_spawn.py [--image tiny|notebook] [--rounds N]``. In each round
every hub starts one server and stops it again, in another order each time. Stock is told one fixed
card, as its admin would write it; ours picks one, once from simulated cards, once from a stand-in
for the NVIDIA driver, whose probe is a real process (needs a C compiler), and once starts without
a GPU. Exits with status 1 if a median is over the target.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections import defaultdict

from ground_bench import (
    CPU,
    ONE,
    figures,
    heading,
    load_image,
    ours,
    private_engine,
    processor_seconds,
    stock,
)

from standin import FakeDriver, build, compiler

TARGET_RATIO = 1.05


def main(image: str, rounds: int) -> int:
    took: dict[str, list[float]] = defaultdict(list)
    stopped: dict[str, list[float]] = defaultdict(list)
    busy: dict[str, float] = defaultdict(float)
    with private_engine() as (engine, folder), contextlib.ExitStack() as stack:
        print(heading(engine))
        name = load_image(engine, image)
        simulated = stack.enter_context(ours(folder / "simulated", engine, name))
        cases = {
            "stock": (stack.enter_context(stock(folder / "stock", engine, name)), None),
            "ours, simulated cards": (simulated, ONE),
            "ours, without a GPU": (simulated, CPU),
        }
        if compiler():
            driver = FakeDriver(build(folder / "driver"))
            config = 'c.GPUPool.inventory = "nvml"'
            hub = ours(folder / "nvml", engine, name, config, env=driver.environment({}))
            cases["ours, driver probe"] = (stack.enter_context(hub), ONE)
        for hub in {hub for hub, _ in cases.values()}:
            hub.add_users("student")
        for turn in range(-1, rounds):
            # Shuffled, the same in every run: what one leaves behind must not always meet the same.
            for case in random.Random(turn).sample(list(cases), len(cases)):
                hub, options = cases[case]
                before = processor_seconds(hub.pid)
                begun = time.perf_counter()
                answer = hub.start_server("student", options)
                ready = time.perf_counter()
                assert answer.status_code == 201, answer.text
                used = processor_seconds(hub.pid) - before
                begun_stop = time.perf_counter()
                hub.stop_server("student")
                hub.wait_stopped("student")
                if turn >= 0:  # the first round warms up
                    took[case].append(1000 * (ready - begun))
                    stopped[case].append(1000 * (time.perf_counter() - begun_stop))
                    busy[case] += used
    base = statistics.median(took["stock"])
    base_stop = statistics.median(stopped["stock"])
    worst = 0.0
    print(f"{image} image, {rounds} rounds; request to ready:")
    for case, times in took.items():
        ratio = statistics.median(times) / base
        worst = max(worst, ratio)
        hub_ms = 1000 * busy[case] / rounds
        print(f"  {case:22} {figures(times)}   ratio {ratio:.3f}   hub {hub_ms:6.1f} ms CPU")
    print("stop to stopped:")
    for case, times in stopped.items():
        print(f"  {case:22} {figures(times)}   ratio {statistics.median(times) / base_stop:.3f}")
    print(f"worst start ratio {worst:.3f}, target {TARGET_RATIO}")
    return int(worst > TARGET_RATIO)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--image", choices=["tiny", "notebook"], default="tiny")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    sys.exit(main(arguments.image, arguments.rounds))
