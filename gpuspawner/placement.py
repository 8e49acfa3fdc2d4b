"""Which cards a request gets: pure, deterministic, the same answer for form, spawn and board.

``place(request, cards) -> Placement | Shortage``. The policy for whole cards is
smallest-that-fits: big cards stay free for those who ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction


@dataclass(frozen=True)
class Request:
    """What a profile asks of the pool.

    Attributes:
        count: number of cards; 0 is a server without a GPU.
        share: part of each card, 0 < share <= 1. Only 1 is offered today.
        min_memory_mib: what the user gets at least, per card, in MiB (of the share, not the card).
        models: names or shell patterns, any of which fits; empty means any model.
    """

    count: int = 1
    share: Fraction = Fraction(1)
    min_memory_mib: int = 0
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count is {self.count}; use 0 (no GPU) or more")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; use a fraction above 0 and at most 1")


@dataclass(frozen=True)
class Card:
    """One device as placement sees it, after claims and reservations were counted.

    Attributes:
        order: this hub's place of the card among equals (hubs try cards in different orders).
        load: what claims and reservations take, as a sum of sizes; may exceed 1.
        unavailable: why the card is not offered at all (ill, gone, dirty, settling, sliced); empty
            if it is.
        settling: it is on its way back by itself, and free in a moment.
        screen_mib: memory that a desktop on it takes.
        foreign: True if somebody outside gpuspawner has it or is at work on it.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int | None
    load: Fraction = Fraction(0)
    unavailable: str = ""
    foreign: bool = False
    order: int = 0
    display: bool = False
    settling: bool = False
    screen_mib: int = 0


@dataclass(frozen=True)
class Placement:
    """The cards a request gets.

    Attributes:
        devices: UUIDs; empty for a server without a GPU.
        share: part of each.
        memory_mib: memory of the smallest of them in MiB (the whole card's), None if not told.
    """

    devices: tuple[str, ...]
    share: Fraction
    memory_mib: int | None = None


@dataclass(frozen=True)
class Shortage:
    """Why a request gets nothing now, in numbers. Every text about it is made from these.

    Attributes:
        total: cards the machine has.
        suitable: cards that meet the request's model and memory, taken or not.
        free: cards that are free, suitable or not.
        free_suitable: cards that are free and suitable.
        held: suitable cards in the hands of gpuspawner's servers.
        foreign: suitable cards in the hands of others.
        unavailable: suitable cards that are out of service: ill, gone, dirty or sliced.
        settling: suitable cards that nobody has and that are offered again in a moment.
    """

    request: Request
    total: int
    suitable: int
    free: int
    free_suitable: int
    held: int
    foreign: int
    unavailable: int
    settling: int = 0

    @property
    def never(self) -> bool:
        """True if waiting can't help: the machine has too few suitable cards, taken or not."""
        return self.suitable < self.request.count


def suits(card: Card, request: Request) -> bool:
    """True if the card, were it free, would meet the request's model and memory."""
    if request.models and not any(
        fnmatchcase(card.model.lower(), pattern.lower()) for pattern in request.models
    ):
        return False
    if request.min_memory_mib:
        if card.memory_mib is None:
            return False
        return (card.memory_mib - card.screen_mib) * request.share >= request.min_memory_mib
    return True


def has_room(card: Card, request: Request) -> bool:
    """True if the card is offered and has room for the request's share, whether it suits or not."""
    return not card.unavailable and card.load + request.share <= 1


def place(request: Request, cards: Sequence[Card]) -> Placement | Shortage:
    """Choose cards for a request.

    Args:
        request: what is asked.
        cards: every device of the machine with its load.

    Returns:
        A Placement whose devices each have room for the share, or a Shortage with the numbers.
        Deterministic: equal input, equal answer, whatever the order of ``cards``.
    """
    if request.count == 0:
        return Placement(devices=(), share=request.share)
    suitable = [c for c in cards if suits(c, request)]
    fitting = [c for c in suitable if has_room(c, request)]
    if len(fitting) >= request.count:
        # A display card is offered last; then the smallest that fits; then this hub's own order.
        chosen = sorted(
            fitting, key=lambda c: (c.display, c.memory_mib or 0, c.order, c.index, c.uuid)
        )[: request.count]
        sizes = [c.memory_mib for c in chosen if c.memory_mib is not None]
        return Placement(
            devices=tuple(c.uuid for c in chosen),
            share=request.share,
            memory_mib=min(sizes) if len(sizes) == len(chosen) else None,
        )
    settling = [c for c in suitable if c.settling]
    taken = [c for c in suitable if not c.unavailable and not has_room(c, request)]
    taken += [c for c in settling if c.load]
    return Shortage(
        request=request,
        total=len(cards),
        suitable=len(suitable),
        free=sum(1 for c in cards if has_room(c, request)),
        free_suitable=len(fitting),
        held=sum(1 for c in taken if not c.foreign),
        foreign=sum(1 for c in taken if c.foreign),
        unavailable=sum(1 for c in suitable if c.unavailable and not c.settling),
        settling=sum(1 for c in settling if not c.load),
    )
