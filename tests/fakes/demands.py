"""What tests ask of a pool, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any

from gpuspawner.demand import Demand, Scene
from gpuspawner.limits import Held, Limit, OverLimit
from gpuspawner.placement import Policies
from gpuspawner.request import Card, Request
from gpuspawner.topology import Topology


def demand(
    user: str = "ada", server: str = "", *, count: int = 1, limit: int = 0, **asked: Any
) -> Demand:
    """A user's wish for cards, with their own limit where it is not 0."""
    mine = Limit("user", user, Fraction(limit), users=frozenset({user}))
    return Demand(
        user=user,
        server=server,
        requests=(Request(count, **asked),),
        limits=(mine,) if limit else (),
    )


def scene(cards: Sequence[Card], *held: Held, topology: Topology | None = None) -> Scene:
    """A machine as a decision sees it, on a Tuesday at noon."""
    now = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    return Scene(tuple(cards), topology or Topology(), Policies(), held, now)


def over(limit: int, held: int, servers: Sequence[str], *, asked: int = 1) -> OverLimit:
    """A user's own limit that a start would exceed; the first of the servers has all but one."""
    mine = Limit("user", "ada", Fraction(limit), users=frozenset({"ada"}))
    rest = held - max(len(servers) - 1, 0)
    sizes = [rest, *[1] * (len(servers) - 1)]
    own = tuple(
        Held("ada", server, "one-gpu", Fraction(size))
        for server, size in zip(servers, sizes, strict=False)
    )
    return OverLimit(mine, Fraction(asked), Fraction(held), own)
