"""Tracebacks in a hub's log: none is ours to have (pure)."""

from __future__ import annotations

from collections.abc import Iterator

_HEAD = "Traceback (most recent call last):"
_SIGNS = (
    "Task exception was never retrieved",
    "Task was destroyed but it is pending",
    "was never awaited",
    "Exception ignored in",
    "carries this hub's id, but this hub did not start it",
)

#: Those that are JupyterHub's own, by what they hold, each with the reason.
ALLOWED = {
    "coroutine 'User.spawn' was never awaited": (
        "a hub that ends cancels its tasks, also one that has not begun yet"
    ),
    'raise RuntimeError(f"{spawner._log_name} pending': (
        "a DELETE gives a start one second to end, and a hub's check at its start none; on a slow "
        "engine or machine that is too short, and the DELETE is a 500"
    ),
}


def faults(log: str) -> Iterator[str]:
    """The tracebacks that nobody expects, and other signs of a fault, each with its context."""
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if any(sign in line for sign in _SIGNS) and not _allowed(line):
            yield line
        if _HEAD not in line:
            continue
        depth, end = line.index(_HEAD), number + 1
        while end < len(lines) and lines[end][: depth + 1].isspace():
            end += 1
        text = "\n".join(lines[max(0, number - 3) : end + 1])
        if not _allowed(text):
            yield text


def _allowed(text: str) -> bool:
    return any(sign in text for sign in ALLOWED)
