"""Create, look, start: may a created container start now? One order decides who yields.

Why it is safe whatever the order: each container is created and listed before its owner looks, and
starts only after a listing in which all claims fit together. Of any set that does not fit, the one
listed last sees all the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from fractions import Fraction

from .claims import Claim, loads
from .devices import Inventory


class Verdict(Enum):
    """What a created container may do next."""

    START = "start"
    WAIT = "wait"  # somebody behind me in the order is listed too: it will yield or go
    YIELD = "yield"  # somebody is before me or already runs


def judge(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    """Judge a created container by one listing made after its create was answered.

    Args:
        mine: the claim of the created container itself.
        claims: all claims of that listing, mine among them or not.
    """
    rivals = [c for c in claims if c.row.id != mine.row.id]
    must = [c for c in rivals if c.decided or c.row.order < mine.row.order]
    if not _fits(mine, must, inventory):
        return Verdict.YIELD
    return Verdict.START if _fits(mine, rivals, inventory) else Verdict.WAIT


def second_look(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> bool:
    """Right after start: True if no outsider runs on a device of mine."""
    strangers = [
        c
        for c in claims
        if c.whose == "outsider" and c.decided and c.row.id != mine.row.id
        if c.row.state != "exited"
    ]
    return _fits(mine, strangers, inventory)


def _fits(mine: Claim, rivals: Iterable[Claim], inventory: Inventory) -> bool:
    listed = list(rivals)
    for device in mine.devices:
        near = loads(listed, inventory, device)
        if mine.size == 1 and any(c.bars_exclusive for c in near):
            return False
        if mine.bars_exclusive and any(c.size == 1 for c in near):
            return False
        if sum((c.size for c in near), Fraction(0)) + mine.size > 1:
            return False
    return True
