"""How many cards users, groups and profiles may hold, and what they hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True)
class Held:
    """What one server of this hub holds or is about to hold.

    Attributes:
        cards: number of cards times the share of each; 0 for a server without a GPU.
    """

    user: str
    server: str
    profile: str
    cards: Fraction


@dataclass(frozen=True)
class Limit:
    """One limit that a start must keep.

    Attributes:
        kind: cards of one user; cards of a group's members together; cards of a profile's servers
            together; or servers of a profile that one user has.
        name: of the user, the group or the profile (as people read it).
        most: cards, or servers.
        users: whose servers count; None for everybody's.
        profile: slug of the profile whose servers count; empty for all.
    """

    kind: Literal["user", "group", "profile", "servers"]
    name: str
    most: Fraction
    users: frozenset[str] | None = None
    profile: str = ""


@dataclass(frozen=True)
class OverLimit:
    """A start would exceed a limit.

    Attributes:
        asked: cards that the start asks for, at least (servers: 1).
        total: what counts towards the limit already.
        own: the part of that which is the asking user's own, by server.
    """

    limit: Limit
    asked: Fraction
    total: Fraction
    own: tuple[Held, ...] = ()


def check_limits(
    limits: Sequence[Limit], held: Collection[Held], asked: Fraction, *, user: str
) -> OverLimit | None:
    """The first limit that a start of ``asked`` cards would exceed; None if it keeps all."""
    for limit in limits:
        counted = [
            h
            for h in held
            if (limit.users is None or h.user in limit.users)
            and (not limit.profile or h.profile == limit.profile)
        ]
        servers = limit.kind == "servers"
        more = Fraction(1) if servers else asked
        total = Fraction(len(counted)) if servers else sum((h.cards for h in counted), Fraction(0))
        if more and total + more > limit.most:
            own = tuple(h for h in counted if h.user == user)
            return OverLimit(limit, more, total, own)
    return None
