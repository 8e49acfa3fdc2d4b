"""Which cards a request gets: pure, deterministic, the same answer for form, spawn and board.

``place(request, cards) -> Placement | Shortage``. Whole cards go by one policy, shares by another
(:mod:`gpuspawner.policies`); linked cards by :mod:`gpuspawner.linked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .linked import choose_linked
from .policies import DEFAULT_POLICY, DEFAULT_SHARE_POLICY, POLICIES
from .request import Card, Placement, Request, Shortage, has_room, suits
from .topology import Topology


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
        topology: what joins the cards; only linked requests look at it.

    Returns:
        A Placement whose devices each have room for the share, or a Shortage with the numbers.
        Deterministic: equal input, equal answer, whatever the order of ``cards``.
    """
    if request.count == 0:
        return Placement(devices=(), share=request.share, request=request)
    suitable = [c for c in cards if suits(c, request)]
    fitting = [c for c in suitable if has_room(c, request)]
    chosen = _chosen(request, fitting, topology, policies)
    if chosen:
        sizes = [c.memory_mib for c in chosen if c.memory_mib is not None]
        return Placement(
            devices=tuple(c.uuid for c in chosen),
            share=request.share,
            memory_mib=min(sizes) if len(sizes) == len(chosen) else None,
            request=request,
        )
    return _shortage(request, cards, suitable, fitting)


def place_first(
    requests: Sequence[Request],
    cards: Sequence[Card],
    topology: Topology = _NO_TOPOLOGY,
    policies: Policies = _DEFAULTS,
) -> Placement | Shortage:
    """Try requests in order; the first that can be met.

    Returns:
        Its Placement; else the Shortage of the first that could ever be met here, or of the first.
    """
    shortages = []
    for request in requests:
        found = place(request, cards, topology, policies)
        if isinstance(found, Placement):
            return found
        shortages.append(found)
    return next((s for s in shortages if not s.never), shortages[0])


def _chosen(
    request: Request, fitting: Sequence[Card], topology: Topology, policies: Policies
) -> tuple[Card, ...]:
    """The cards to give; empty if there are too few, or none that are linked as required."""
    if len(fitting) < request.count:
        return ()
    policy = POLICIES[policies.whole if request.share == 1 else policies.shares]
    if request.linked and request.count > 1:
        return choose_linked(fitting, request.count, topology, required=request.linked == "require")
    return policy(fitting, request.count, request.share)


def _shortage(
    request: Request, cards: Sequence[Card], suitable: Sequence[Card], fitting: Sequence[Card]
) -> Shortage:
    of_kind = [c for c in cards if bool(c.mig_profile) == bool(request.mig_profile)]
    settling = [c for c in suitable if c.settling]
    kept = [c for c in suitable if c.kept and not c.unavailable and c.load + request.share <= 1]
    taken = [c for c in suitable if not c.unavailable and c.load + request.share > 1]
    taken += [c for c in settling if c.load]
    return Shortage(
        request=request,
        total=len(of_kind),
        suitable=len(suitable),
        free=sum(1 for c in of_kind if has_room(c, request)),
        free_suitable=len(fitting),
        held=sum(1 for c in taken if not c.foreign),
        foreign=sum(1 for c in taken if c.foreign),
        unavailable=sum(1 for c in suitable if c.unavailable and not c.settling),
        settling=sum(1 for c in settling if not c.load),
        kept=len(kept),
        unlinked=len(fitting) >= request.count,
    )
