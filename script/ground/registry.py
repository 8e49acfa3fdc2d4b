"""Which private engines there are on this machine, so that none outlives its owner for long.

One file per engine, named after its bridge; beside it a folder for what the engine keeps while it
runs, whose sockets must not have long paths.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .bridge import Bridge, create_bridge, remove_bridge
from .leftovers import clear_engine, start_ticks
from .machine import GroundError

REGISTRY = Path("/run/gpuspawner-ground")


@dataclass(frozen=True)
class _Entry:
    """Who owns an engine; the start time tells a process from a later one of the same number."""

    folder: str
    owner: int
    owner_start: int

    @property
    def alive(self) -> bool:
        return start_ticks(self.owner) == self.owner_start


def run_folder(bridge: str) -> Path:
    """What the daemons on this bridge keep while they run."""
    return REGISTRY / bridge


def claim_bridge(folder: Path) -> Bridge:
    """A new bridge for an engine in ``folder``, after taking down what is left of dead ones.

    Raises:
        GroundError: another process runs an engine in ``folder``.
    """
    with _lock():
        _clear_dead()
        for path, entry in _entries():
            if Path(entry.folder) == folder:
                raise GroundError(
                    f"process {entry.owner} already runs an engine in {folder} on {path.stem}"
                )
        clear_engine(folder)
        bridge = create_bridge(reserved={path.stem for path, _ in _entries()})
        run_folder(bridge.name).mkdir(exist_ok=True)
        entry = _Entry(str(folder), os.getpid(), start_ticks(os.getpid()))
        (REGISTRY / f"{bridge.name}.json").write_text(json.dumps(asdict(entry)))
    return bridge


def release(bridge: str) -> None:
    """Take down the engine on this bridge, and the bridge."""
    with _lock():
        for path, entry in _entries():
            if path.stem == bridge:
                _clear(path, entry)


def clear_dead_engines() -> None:
    """Take down every engine whose owner is gone, such as after a SIGKILL of a test run."""
    with _lock():
        _clear_dead()


def _clear_dead() -> None:
    for path, entry in _entries():
        if not entry.alive:
            _clear(path, entry)


def _clear(path: Path, entry: _Entry) -> None:
    run = run_folder(path.stem)
    clear_engine(Path(entry.folder), run)
    remove_bridge(path.stem)
    shutil.rmtree(run, ignore_errors=True)
    path.unlink()


def _entries() -> list[tuple[Path, _Entry]]:
    paths = sorted(REGISTRY.glob("*.json"))
    return [(path, _Entry(**json.loads(path.read_text()))) for path in paths]


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    REGISTRY.mkdir(parents=True, exist_ok=True)
    with (REGISTRY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
