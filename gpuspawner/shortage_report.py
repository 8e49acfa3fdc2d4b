"""What the admin reads in the log about a shortage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .request import Card, Shortage, suits


def admin_shortage(shortage: Shortage, cards: Sequence[Card]) -> str:
    """Numbers, every card's state, and the usual fix."""
    request = shortage.request
    wanted = [f"{request.count} card(s)"]
    if request.share != Fraction(1):
        wanted.append(f"share {request.share}")
    if request.min_memory_mib:
        wanted.append(f"at least {request.min_memory_mib} MiB")
    if request.models:
        wanted.append(f"model in {list(request.models)}")
    lines = [
        (
            f"no placement for {', '.join(wanted)}: {shortage.total} card(s), "
            f"{shortage.suitable} suitable, {shortage.free_suitable} of those free, "
            f"{shortage.held} held by servers, {shortage.foreign} in foreign hands, "
            f"{shortage.unavailable} not offered, {shortage.settling} offered again in a moment"
        )
    ]
    lines += [f"  {_card(c)}" for c in sorted(cards, key=lambda c: (c.index, c.uuid))]
    if any(c.foreign and suits(c, request) for c in cards):
        lines.append(
            "  A container or process outside the hub has a card. If it only monitors, label it "
            "gpuspawner.role=observer or add its image to GPUPool.observers; else stop it."
        )
    if shortage.never:
        lines.append("  Waiting can't help: the machine has too few such cards.")
    return "\n".join(lines)


def _card(card: Card) -> str:
    size = "memory not told" if card.memory_mib is None else f"{card.memory_mib} MiB"
    if card.unavailable:
        state = f"not offered: {card.unavailable}"
    elif card.load == 0:
        state = "free"
    else:
        state = f"load {card.load}{', foreign' if card.foreign else ''}"
    return f"card {card.index} {card.uuid or '(no UUID)'} {card.model} {size}: {state}"
