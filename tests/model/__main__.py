"""Searches all scenes to their end: ``PYTHONPATH=.:script:tests python -m model [name]``."""

from __future__ import annotations

import sys
import time

from .scenes import LARGE, SMALL
from .search import search


def main(words: str) -> int:
    total, failed = 0, 0
    for name, scene in {**SMALL, **LARGE}.items():
        if words not in name:
            continue
        begun = time.monotonic()
        found = search(scene)
        total += found.states
        failed += bool(found.broken)
        seconds = time.monotonic() - begun
        print(f"{found.states:9,} states {seconds:7.1f} s  {name}  {found.broken}", flush=True)
        for step in found.story:
            print(f"            {step}")
    print(f"{total:9,} states in all, {failed} scenes in which a law is broken")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
