"""The words for a start that would exceed a limit, and for a server whose time ends.

As all words for users: see :mod:`gpuspawner.messages`. Pure.
"""

from __future__ import annotations

import math
from fractions import Fraction

from .limits import Held, OverLimit
from .messages import amount, gpus, name


def refused(over: OverLimit, *, cpu_available: bool = True) -> str:
    """The start would exceed a limit.

    Args:
        cpu_available: the user may start a profile without a GPU.
    """
    if over.never:
        return f"{_may(over)}, this profile asks for {amount(over.asked)}. {_OTHER}"
    return f"{_stands(over, 'this one asks for')} {_advice(over, cpu_available)}"


def disabled(over: OverLimit) -> str:
    """Why a limit closes a profile on the form, in a few words."""
    if over.never:
        return f"{_may(over)}; this needs {amount(over.asked)}."
    return _stands(over, "this needs")


_OTHER = "Please choose another profile."


def _stands(over: OverLimit, need: str) -> str:
    """The limit, and what there is of it already."""
    asks = f"; {need} {amount(over.asked)}" if over.total < over.limit.most else ""
    if over.limit.kind == "servers":
        return f"{_may(over)}, and you have {_of_servers(over)}."
    if over.limit.kind == "user":
        return f"{_may(over)}, and {_have(over)}{asks}."
    used = f"{amount(over.total)} {'is' if over.total <= 1 else 'are'} in use"
    if own := _cards(over.own):
        # With what it asks for there is no room for a name of several words.
        used += f", {amount(own)} by {'you' if asks else _your(over.own)}"
    return f"{_may(over)}, and {used}{asks}."


def _may(over: OverLimit) -> str:
    """Who may have how much."""
    limit = over.limit
    if limit.kind == "servers":
        count = "one server" if limit.most == 1 else f"{amount(limit.most)} servers"
        return f"You may have {count} of {name(limit.name)} at a time"
    who = {"user": "You", "group": f"Your group {name(limit.name)}"}.get(limit.kind)
    return f"{who or f'Users of {name(limit.name)}'} may use {gpus(limit.most)} at a time"


def _have(over: OverLimit) -> str:
    held = "it" if over.total == 1 else amount(over.total)
    return f"{_your(over.own)} {'has' if len(over.own) == 1 else 'have'} {held}"


def _of_servers(over: OverLimit) -> str:
    """The servers that count, by name where there is one only."""
    if len(over.own) == 1:
        return "it: " + _your(over.own)
    return "them"


def _your(own: tuple[Held, ...]) -> str:
    if len(own) != 1:
        return f"{len(own) or 'some'} of your servers"
    return f"your server {name(own[0].server)}" if own[0].server else "your default server"


def _cards(held: tuple[Held, ...]) -> Fraction:
    return sum((h.cards for h in held), Fraction(0))


def _advice(over: OverLimit, cpu_available: bool) -> str:
    """What the user can do now."""
    several = len(over.own) != 1
    if over.limit.kind == "servers":
        return "Stop one of them first." if several else "Stop that server first."
    if over.limit.kind == "user":
        stop = "Stop one of them first" if several else "Stop that server first"
        return f"{stop}, or start this one without a GPU." if cpu_available else f"{stop}."
    ways = ["Stop yours"] if over.own else []
    if cpu_available:
        ways.append("start without a GPU" if ways else "You can start without a GPU")
    ways.append("try again later" if ways else "Please try again later")
    *others, last = ways
    return f"{', '.join(others)}, or {last}." if others else f"{last}."


# -- time ---------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """``4 hours``, ``90 minutes``, ``7 seconds``: rounded to what is said best."""
    for size, unit in ((3600, "hour"), (60, "minute")):
        count = round(seconds / size)
        if count and abs(seconds - count * size) < 1:
            return _counted(count, unit)
    if seconds >= 60:
        return _counted(round(seconds / 60), "minute")
    return _counted(max(1, round(seconds)), "second")


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def time_ends(max_seconds: float, left_seconds: float, *, gpu: bool) -> str:
    """The time of a running server ends soon.

    Args:
        gpu: it has one.
    """
    minutes = max(1, math.ceil(left_seconds / 60))
    again = "You can start again afterwards if a GPU is free."
    return (
        f"{_your_time(max_seconds, gpu)} {_verb(max_seconds, 'ends', 'end')} in "
        f"{_counted(minutes, 'minute')}. Please save and write a checkpoint before then. "
        f"{again if gpu else 'You can start again afterwards.'}"
    )


def time_over(max_seconds: float, *, gpu: bool) -> str:
    """The time of a server is over, and it was stopped."""
    again = "You can start again if a GPU is free." if gpu else "You can start again."
    return (
        f"{_your_time(max_seconds, gpu)} {_verb(max_seconds, 'is', 'are')} over, so your server "
        f"was stopped. Files are kept; variables are lost. {again}"
    )


def _your_time(max_seconds: float, gpu: bool) -> str:
    return f"Your {duration(max_seconds)} of {'GPU' if gpu else 'server'} time"


def _verb(max_seconds: float, one: str, several: str) -> str:
    return one if duration(max_seconds).startswith("1 ") else several
