"""What the benchmarks with real hubs share: engine, hubs side by side, figures.

All figures of one run come from hubs that stand on one engine at the same time and take turns, so
that a busy machine slows all of them alike.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
for folder in ("tests", "script", "."):
    sys.path.insert(0, str(REPOSITORY / folder))

from gpu_hub import gpu_hub  # noqa: E402
from ground import image  # noqa: E402 - found through the lines above
from ground.engine import Engine  # noqa: E402
from ground.hub import Hub  # noqa: E402
from ground.registry import clear_dead_engines  # noqa: E402

#: A request is answered when its server is ready or refused, however long that takes.
PATIENT = """
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 300}
c.JupyterHub.concurrent_spawn_limit = 0
"""
#: The same card at each start, as an admin of stock DockerSpawner would write it.
STOCK = """
c.DockerSpawner.extra_host_config = {{
    "device_requests": [
        {{"Driver": "nvidia", "DeviceIDs": ["{uuid}"], "Capabilities": [["gpu"]]}}
    ]
}}
c.JupyterHub.cleanup_servers = False
"""
ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}


@contextlib.contextmanager
def private_engine() -> Iterator[tuple[Engine, Path]]:
    """An engine of our own with four simulated cards on the hook path, and a scratch folder."""
    clear_dead_engines()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch)
        with Engine(folder / "engine", "hook") as engine:
            yield engine, folder


def load_image(engine: Engine, name: str) -> str:
    """``tiny`` or ``notebook``, loaded into the engine."""
    loaders = {"tiny": image.load_tiny, "notebook": image.load_notebook}
    return loaders[name](engine.client)


def ours(folder: Path, engine: Engine, image_name: str, config: str = "", **kwargs: object) -> Hub:
    """A hub with GPUSpawner, not started."""
    return gpu_hub(folder, engine, image_name, PATIENT + config, **kwargs)


def stock(folder: Path, engine: Engine, image_name: str, config: str = "") -> Hub:
    """A hub with DockerSpawner as published, not started."""
    with_card = STOCK.format(uuid=engine.uuids[-1])
    return Hub(folder, PATIENT + with_card + config, engine=engine, image=image_name)


def processor_seconds(pid: int) -> float:
    """Processor time that a process and its ended children have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def figures(milliseconds: Sequence[float]) -> str:
    """Median, least and most, in one style everywhere."""
    middle = statistics.median(milliseconds)
    return f"median {middle:8.1f} ms   min {min(milliseconds):8.1f}   max {max(milliseconds):8.1f}"


def heading(engine: Engine) -> str:
    """When, where and with what."""
    packages = " ".join(f"{name} {version(name)}" for name in ("jupyterhub", "dockerspawner"))
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, "
        f"{os.cpu_count()} cores of {model}, load {load}\n"
        f"Python {platform.python_version()}, {packages}, engine {engine.version}"
    )
