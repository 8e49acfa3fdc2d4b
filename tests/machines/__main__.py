"""``python -m machines``: as many steps of a state machine as wanted, and what happened in them."""

from __future__ import annotations

import argparse
import logging
import random
import time
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .core_machine import CoreMachine
from .pool_machine import PoolMachine

MACHINES: dict[str, Any] = {"core": CoreMachine, "pool": PoolMachine}


def main() -> None:
    parser = argparse.ArgumentParser(prog="machines", description=__doc__)
    parser.add_argument("machine", choices=MACHINES)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    told = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"seed {told.seed}", flush=True)
    machine = MACHINES[told.machine]
    begun = time.monotonic()
    try:
        run_state_machine_as_test(
            seed(told.seed)(machine),
            settings=settings(
                max_examples=told.examples,
                stateful_step_count=told.steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate, Phase.shrink),
            ),
        )
    finally:
        print(f"{time.monotonic() - begun:.0f} s")
        for what, count in sorted(machine.counted.items()):
            print(f"{count:8} {what}")


if __name__ == "__main__":
    main()
