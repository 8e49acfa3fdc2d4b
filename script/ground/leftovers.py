"""Taking an engine down to the last process, mount and cgroup, by the folders it lives in.

Used at a normal stop for what the engine left, and at the next start for an engine whose owner was
killed. Nothing outside the given folders is touched: a process counts as the engine's only if it
is an engine program that names such a folder in its command line, or was started by one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from .machine import find_command, run

_PROGRAMS = ("dockerd", "containerd", "containerd-shim")
_PROC = Path("/proc")


def clear_engine(*folders: Path, timeout_seconds: float = 20) -> None:
    """End every process of the engine in ``folders`` and undo its mounts and cgroups."""
    containers = [name for folder in folders for name in _container_ids(folder)]
    deadline = time.monotonic() + timeout_seconds
    killed: set[int] = set()
    # One that ends has no command line any more, by which it was known, while it has its files.
    while pids := engine_processes(*folders) | {p for p in killed if not has_ended(p)}:
        killed |= pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(pids)} of the engine in {folders[0]} do not end")
        time.sleep(0.02)
    for target in reversed(mounts_below(*folders)):
        run([find_command("umount") or "umount", "--lazy", target])
    for container in containers:
        _remove_cgroups(container)


def engine_processes(*folders: Path) -> set[int]:
    """PIDs of the engine in ``folders``: its daemons, its shims and all they started."""
    children: dict[int, list[int]] = {}
    roots: list[int] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            parent = int(_stat(pid)[1])
            if (thread := _living_thread(pid)) is None:
                continue  # only its parent can reap it
            words = (thread / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        children.setdefault(parent, []).append(pid)
        if _is_engine_program(words, folders):
            roots.append(pid)
    found: set[int] = set()
    while roots:
        pid = roots.pop()
        if pid not in found:
            found.add(pid)
            roots += children.get(pid, [])
    return found


def mounts_below(*folders: Path) -> list[str]:
    """Mount points below ``folders``, in the order they were made."""
    prefixes = tuple(f"{folder}/" for folder in folders)
    lines = (_PROC / "self" / "mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point.startswith(prefixes)]


def all_stopped(pid: int) -> bool:
    """True if every thread of a process is stopped by a signal, or the process has ended."""
    states = []
    for task in (_PROC / str(pid) / "task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return all(state in "TZX" for state in states)


def has_ended(pid: int) -> bool:
    """True once a process has let go of its files and ports: it is gone, or only to be reaped."""
    try:
        return _living_thread(pid) is None
    except OSError:
        return True


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is no such process."""
    try:
        return int(_stat(pid)[19])
    except OSError:
        return 0


def _stat(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _living_thread(pid: int) -> Path | None:
    """The folder of a thread that still runs.

    The first thread, which the process's own files tell of, may be a zombie with an empty command
    line while others run on: then the process has all its files and ports.
    """
    for task in (_PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return task
    return None


def _is_engine_program(words: Iterable[bytes], folders: Iterable[Path]) -> bool:
    program, *arguments = [os.fsdecode(word) for word in words] or [""]
    name = Path(program).name
    if name not in _PROGRAMS and not name.startswith("containerd-shim"):
        return False
    prefixes = tuple(f"{folder}/" for folder in folders)
    return any(word.startswith(prefixes) for word in arguments)


def _container_ids(folder: Path) -> list[str]:
    containers = folder / "data" / "containers"
    return [path.name for path in containers.iterdir()] if containers.is_dir() else []


def _remove_cgroups(container: str) -> None:
    root = Path("/sys/fs/cgroup")
    for parent in (root / "docker", *root.glob("*/docker")):
        for folder, _, _ in os.walk(parent / container, topdown=False):
            # A cgroup that the kernel still empties goes by itself or at the next clearing.
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
