"""Which cards a request gets: pure, deterministic, the same answer for form, spawn and board.

``place(request, cards) -> Placement | Shortage``. Whole cards go by one policy, shares by another
(:mod:`gpuspawner.policies`); linked cards by :mod:`gpuspawner.linked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from .linked import choose_linked
from .policies import DEFAULT_POLICY, DEFAULT_SHARE_POLICY, POLICIES
from .request import (
    Card,
    Kept,
    Placement,
    Request,
    Shortage,
    has_room,
    memory_offered,
    of_kind,
    of_model,
    suits,
)
from .topology import Topology, groups_of


@dataclass(frozen=True)
class Policies:
    """The names of the policies in force; see :data:`gpuspawner.policies.POLICIES`."""

    whole: str = DEFAULT_POLICY
    shares: str = DEFAULT_SHARE_POLICY


_NO_TOPOLOGY = Topology()
_DEFAULTS = Policies()


def place(
    request: Request,
    cards: Sequence[Card],
    topology: Topology = _NO_TOPOLOGY,
    policies: Policies = _DEFAULTS,
) -> Placement | Shortage:
    """Choose cards for a request.

    Args:
        request: what is asked.
        cards: every device of the machine with its load, slices as devices of their own.
        topology: what joins the cards.

    Returns:
        A Placement whose devices each have room for the share, or a Shortage with the numbers.
        Deterministic: equal input, equal answer, whatever the order of ``cards``.
    """
    if request.count == 0:
        return Placement(devices=(), share=request.share, request=request)
    suitable = [c for c in cards if suits(c, request) and not closed(c)]
    fitting = [c for c in suitable if has_room(c, request)]
    chosen = _chosen(request, fitting, cards, topology, policies)
    if not chosen:
        return _shortage(request, cards, suitable, fitting, topology)
    sizes = [c.memory_mib for c in chosen if c.memory_mib is not None]
    return Placement(
        devices=tuple(c.uuid for c in chosen),
        share=request.share,
        memory_mib=min(sizes) if len(sizes) == len(chosen) else None,
        request=request,
    )


def place_first(
    requests: Sequence[Request],
    cards: Sequence[Card],
    topology: Topology = _NO_TOPOLOGY,
    policies: Policies = _DEFAULTS,
) -> Placement | Shortage:
    """Try requests in order; the first that can be met.

    Returns:
        Its Placement; else the Shortage of the request that has the most cards to wait for, the
        first of those that have equally many. One that can never be met counts only where none can.
    """
    shortages: list[Shortage] = []
    for request in requests:
        found = place(request, cards, topology, policies)
        if isinstance(found, Placement):
            return found
        shortages.append(found)
    widest = max(shortages, key=lambda s: (not s.never, s.suitable))
    return replace(widest, others=tuple(s for s in shortages if s is not widest))


def closed(card: Card) -> bool:
    """True if the one who asks never gets the card, however long they wait."""
    return card.kept is not None and card.kept.always


def _chosen(
    request: Request,
    fitting: Sequence[Card],
    cards: Sequence[Card],
    topology: Topology,
    policies: Policies,
) -> tuple[Card, ...]:
    """The cards to give; empty if there are too few, or none that are linked as required."""
    if len(fitting) < request.count:
        return ()
    policy = POLICIES[policies.whole if request.share == 1 else policies.shares]
    groups = groups_of(cards, topology)
    if request.linked and request.count > 1:
        ordered = policy(fitting, len(fitting), request.share, groups)
        required = request.linked == "require"
        return choose_linked(ordered, request.count, topology, required=required)
    return policy(fitting, request.count, request.share, groups)


def _shortage(
    request: Request,
    cards: Sequence[Card],
    suitable: Sequence[Card],
    fitting: Sequence[Card],
    topology: Topology,
) -> Shortage:
    kind = [c for c in cards if bool(c.mig_profile) == bool(request.mig_profile) and not c.sliced]
    settling = [c for c in suitable if c.settling]
    in_service = [c for c in suitable if not c.unavailable]
    taken = [c for c in in_service if c.load + request.share > 1]
    taken += [c for c in settling if c.load]
    kept = [c.kept for c in in_service if c.kept and c.load + request.share <= 1]
    sizes = [
        memory_offered(c, request) for c in cards if of_kind(c, request) if of_model(c, request)
    ]
    linked = request.linked == "require" and request.count > 1
    return Shortage(
        request=request,
        total=len(kind),
        suitable=len(suitable),
        free=sum(1 for c in kind if has_room(c, request)),
        free_suitable=len(fitting),
        held=sum(1 for c in taken if not c.foreign),
        foreign=sum(1 for c in taken if c.foreign),
        unavailable=sum(1 for c in suitable if c.unavailable and not c.settling),
        settling=sum(1 for c in settling if not c.load),
        kept=len(kept),
        closed=sum(1 for c in cards if closed(c) and suits(c, request)),
        kept_until=min((k.until for k in kept if k.until), default=None),
        kept_from=_begins(kept),
        unlinked=len(fitting) >= request.count,
        never_linked=linked
        and len(suitable) >= request.count
        and not choose_linked(suitable, request.count, topology, required=True),
        largest_mib=max((s for s in sizes if s is not None), default=None),
    )


def _begins(kept: Sequence[Kept]) -> datetime | None:
    """When the last of them begins to be kept; None if one is kept already."""
    begins = [k.begins for k in kept if k.begins]
    return max(begins) if begins and len(begins) == len(kept) else None
