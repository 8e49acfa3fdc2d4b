"""What gpuspawner adds to a hub's start, beside what any hub with DockerSpawner loads anyway.

Each round is a fresh process that loads the hub, then ``import gpuspawner``, then all that the hub
loads once its configuration is read, and tells what each step took. Processor time, and the least
of several rounds, since a busy machine only ever adds.

Run: ``python benchmarks/bench_import.py [rounds]``
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

STEPS = {
    "import jupyterhub.app, dockerspawner": "hub and DockerSpawner",
    "import gpuspawner": "+ import gpuspawner",
    "gpuspawner.configure": "+ all that configure(c) loads",
}
BUDGET_MS = 100
_ROUND = """
import json, time
took = []
for step in {steps}:
    begun = time.process_time()
    exec(step)
    took.append(1000 * (time.process_time() - begun))
print(json.dumps(took))
"""


def one_round() -> list[float]:
    """Milliseconds of processor time for each step, in a fresh process."""
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ROUND.format(steps=list(STEPS))],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    took: list[float] = json.loads(answer.stdout)
    return took


def main() -> None:
    """Measure and print; exit with status 1 over the budget."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    one_round()  # writes the byte code, fills the disk's cache
    least = [min(step) for step in zip(*(one_round() for _ in range(rounds)), strict=True)]
    for name, took in zip(STEPS.values(), least, strict=True):
        print(f"{name:32} {took:7.1f} ms")
    added = sum(least[1:])
    print(f"added: {added:.1f} ms of at most {BUDGET_MS}")
    sys.exit(added >= BUDGET_MS)


if __name__ == "__main__":
    main()
