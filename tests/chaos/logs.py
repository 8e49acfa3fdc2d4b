"""Tracebacks in a hub's log: with a line of ours in them, they are faults (pure).

The rest is JupyterHub's own, and is only counted. It has many, such as a 500 for a DELETE that
comes while a hub checks its servers, or while a start that was cancelled has not ended within a
second; a proxy that ends before its hub; a task that is cancelled with the hub before it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = "Traceback (most recent call last):"
_SIGNS = (
    "Task exception was never retrieved",
    "Task was destroyed but it is pending",
    "Exception ignored in",
    "Unhandled error in poll callback",
    "was never awaited",
)
#: Says that two hubs have one id, which no storm does.
_FALSE_ALARM = "carries this hub's id, but this hub did not start it"
_OURS = re.compile(r"gpuspawner/\w+\.py")
#: How a traceback ends whose task was cancelled together with its hub.
_CANCELLED = "CancelledError"
_BEFORE = 3
_NAME = re.compile(r"user\d+(:\w+)?")


@dataclass(frozen=True)
class Fault:
    """A traceback, or what looks like one.

    Attributes:
        text: with the lines before it.
        last: the line that names the exception, without names of users.
        ours: False for JupyterHub's own.
    """

    text: str
    last: str
    ours: bool


def faults(log: str) -> Iterator[Fault]:
    """What a hub's log has of them."""
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if _FALSE_ALARM in line:
            yield Fault(line, line, ours=True)
        elif _HEAD in line:
            depth, end = line.index(_HEAD), number + 1
            while end < len(lines) and lines[end][: depth + 1].isspace():
                end += 1
            text = "\n".join(lines[max(0, number - _BEFORE) : end + 1])
            last = _NAME.sub("a user", lines[end].strip()) if end < len(lines) else ""
            yield Fault(text, last, ours=_is_ours(text) and not last.endswith(_CANCELLED))
        elif any(sign in line for sign in _SIGNS):
            text = "\n".join(lines[number : number + _BEFORE])
            yield Fault(text, line.strip(), ours=_is_ours(text))


def _is_ours(text: str) -> bool:
    return bool(_OURS.search(text))
