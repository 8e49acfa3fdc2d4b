"""What the startup hook adds to the start of Python, side by side with no hook.

Usage: ``python benchmarks/bench_hook.py [rounds]``. Each round starts Python once without and once
with the hook, in alternating order; printed are the medians in milliseconds and their ratio.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOOK = Path(__file__).parent.parent / "gpuspawner" / "hook" / "sitecustomize.py"


def start_seconds(env: dict[str, str]) -> float:
    """Seconds from start to end of a Python that does nothing."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - begin


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Copied and never cached as bytecode: in a container the folder is not the user's.
        Path(folder, "sitecustomize.py").write_bytes(HOOK.read_bytes())
        plain = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        plain["PYTHONDONTWRITEBYTECODE"] = "1"
        path = {**plain, "PYTHONPATH": folder}
        cases = {
            "no hook": plain,
            "hook, whole card": path,
            "hook, half a card": {**path, "GPUSPAWNER_MEMORY_FRACTION": "0.5"},
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(rounds):
            for name in sorted(cases, reverse=bool(turn % 2)):
                times[name].append(start_seconds(cases[name]))
    base = statistics.median(times["no hook"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:18} {median * 1000:7.2f} ms   ratio {median / base:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
