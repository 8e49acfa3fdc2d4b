"""A storm from the command line: ``python -m chaos --minutes 30 [--seed N]``."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ground.registry import clear_dead_engines

from .oracle import Oracle
from .storm import Plan, storm

#: Also where there was none.
_ALWAYS_TOLD = ("double grant", "leaked card", "orphan")


def main() -> int:
    """Run; 1 if anything was seen that must never be."""
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--kind", choices=["hook", "cdi"], default="hook")
    parser.add_argument("--gap", type=float, default=10, help="seconds between two deeds of a kind")
    given = parser.parse_args()
    seconds = given.minutes * 60
    plan = Plan(seed=given.seed, seconds=seconds, kind=given.kind, gap_seconds=given.gap)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {plan.seed}, engine {plan.kind}, {given.minutes:g} min, in {folder}", flush=True)
    # Ended by others, it still takes down what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    begun = time.monotonic()
    try:
        oracle = storm(plan, folder)
    finally:
        clear_dead_engines()
    print(report(oracle))
    print(f"{time.monotonic() - begun:.0f} s with the checks at the end; logs are in {folder}")
    return 1 if oracle.violations else 0


def report(oracle: Oracle) -> str:
    """The counts, and each violation with its story."""
    lines = [f"{len(oracle.granted):7} grants"]
    lines += [f"{count:7} {what}" for what, count in sorted(oracle.counts.items())]
    lines += [f"\n{violation}" for violation in oracle.violations]
    kinds = Counter(violation.kind for violation in oracle.violations)
    lines += [f"{kinds.pop(kind, 0):7} {kind}s" for kind in _ALWAYS_TOLD]
    lines += [f"{count:7} {kind}" for kind, count in sorted(kinds.items())]
    lines.append(f"{len(oracle.violations):7} violations")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
