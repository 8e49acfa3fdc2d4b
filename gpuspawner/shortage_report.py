"""What the admin reads in the log about a shortage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .request import Card, Request, Shortage, suits

_MIB_PER_GIB = 1024


def admin_shortage(shortage: Shortage, cards: Sequence[Card]) -> str:
    """Numbers, every card's state, and the usual fix.

    Args:
        cards: as the one who asked sees them.
    """
    lines = [f"no placement for {_wanted(shortage.request)}: {_numbers(shortage)}"]
    lines += [f"  also tried: {_wanted(o.request)}: {_numbers(o)}" for o in shortage.others]
    lines += [f"  {_card(c)}" for c in sorted(cards, key=lambda c: (c.index, c.parent, c.uuid))]
    tried = (shortage, *shortage.others)
    if any(c.foreign and suits(c, found.request) for c in cards for found in tried):
        lines.append(
            "  A container or process outside the hub has a card. If it only monitors, label it "
            "gpuspawner.role=observer or add its image to GPUPool.observers; else stop it."
        )
    lines += [f"  {text}" for text in map(_hint, tried) if text]
    if all(found.never for found in tried):
        lines.append("  Waiting can't help: the machine has too few such cards.")
    return "\n".join(lines)


def _wanted(request: Request) -> str:
    """The request as the admin wrote it."""
    what = f"slice(s) {request.mig_profile}" if request.mig_profile else "card(s)"
    wanted = [f"{request.count} {what}"]
    if request.share != Fraction(1):
        wanted.append(f"share {request.share}")
    if request.memory_part < request.share:
        wanted.append(f"memory_fraction {request.told}")
    if request.min_memory_mib:
        wanted.append(f"at least {request.min_memory_mib} MiB")
    if request.models:
        wanted.append(f"model in {list(request.models)}")
    if request.linked:
        wanted.append(f"linked ({request.linked})")
    return ", ".join(wanted)


def _numbers(shortage: Shortage) -> str:
    parts = [
        f"{shortage.total} of the kind",
        f"{shortage.suitable} suitable",
        f"{shortage.free_suitable} of those free",
        f"{shortage.held} held by servers",
        f"{shortage.foreign} in foreign hands",
        f"{shortage.unavailable} not offered",
        f"{shortage.settling} offered again in a moment",
    ]
    if shortage.kept:
        parts.append(f"{shortage.kept} kept for others now")
    if shortage.closed:
        parts.append(f"{shortage.closed} more always kept for others")
    if shortage.unlinked:
        parts.append("enough are free, but no set of them is linked")
    if shortage.never_linked:
        parts.append("no set of them would ever be linked")
    return ", ".join(parts)


def _hint(shortage: Shortage) -> str:
    """Where the memory asked for is more than any card gives: what would fit."""
    asked, largest = shortage.request.min_memory_mib, shortage.largest_mib
    if largest is None or largest >= asked:
        return ""
    return (
        f"The largest such card gives {largest} MiB, less than the {asked} MiB asked for: cards "
        "have somewhat less than their name says, and a share or a memory_fraction gives a part. "
        f"min_memory_gib of {largest // _MIB_PER_GIB} would fit."
    )


def _card(card: Card) -> str:
    size = "memory not told" if card.memory_mib is None else f"{card.memory_mib} MiB"
    if card.unavailable:
        state = f"not offered: {card.unavailable}"
    elif card.load == 0:
        state = "free"
    else:
        state = f"load {card.load}{', foreign' if card.foreign else ''}"
    if card.kept:
        state += f"; {card.kept.why}"
        if card.kept.until:
            state += f" until {card.kept.until:%a %H:%M}"
        if card.kept.begins:
            state += f", next at {card.kept.begins:%a %H:%M}"
    elif card.own:
        state += "; kept for the groups of this user"
    what = f"slice {card.mig_profile} of card" if card.parent else "card"
    return f"{what} {card.index} {card.uuid or '(no UUID)'} {card.model} {size}: {state}"
