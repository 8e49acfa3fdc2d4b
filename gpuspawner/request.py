"""What a profile asks of the pool, the cards as placement sees them, and the two answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Literal

#: Whether several cards must, or should, be joined by something faster than the whole machine.
Linked = Literal["", "prefer", "require"]


@dataclass(frozen=True)
class Request:
    """What a profile asks of the pool.

    Attributes:
        count: number of cards, or of slices; 0 is a server without a GPU.
        share: part of each card, 0 < share <= 1.
        min_memory_mib: what the user gets at least, per card, in MiB (of the share, not the card).
        models: names or shell patterns, any of which fits; empty means any model.
        mig_profile: of the slices asked for, such as ``1g.10gb``; empty asks for cards.
        linked: whether the cards must (``require``) or should (``prefer``) be linked.
        told: part of each card's memory that frameworks are told to take, where the admin set one
            (``memory_fraction``); counts where it is less than the share.
    """

    count: int = 1
    share: Fraction = Fraction(1)
    min_memory_mib: int = 0
    models: tuple[str, ...] = ()
    mig_profile: str = ""
    linked: Linked = ""
    told: Fraction = Fraction(1)

    @property
    def memory_part(self) -> Fraction:
        """Part of each card's memory that the user gets."""
        return min(self.share, self.told)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count is {self.count}; use 0 (no GPU) or more")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; use a fraction above 0 and at most 1")


@dataclass(frozen=True)
class Kept:
    """A card is kept for others than the one who asks now.

    Attributes:
        why: in words for the admin.
        until: it is over then; None where that is not known, or not alike for every start.
        begins: it has not begun, but what is asked for might still run then.
        always: waiting can't help: the one who asks never gets it for this.
    """

    why: str
    until: datetime | None = None
    begins: datetime | None = None
    always: bool = False


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
        mig_profile: of a slice, such as ``1g.10gb``; empty for a card.
        parent: UUID of the card that a slice is cut from; empty for a card.
        numa_node: that the card, or a slice's card, sits at; None where not told.
        sliced: MIG mode is on, so its slices are given out and it is not.
        kept: it is kept for others than the one who asks now; None if it is not.
        own: it is kept for the one who asks, so it is given out before those that all may have.
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
    mig_profile: str = ""
    parent: str = ""
    numa_node: int | None = None
    sliced: bool = False
    kept: Kept | None = None
    own: bool = False


@dataclass(frozen=True)
class Placement:
    """The cards a request gets.

    Attributes:
        devices: UUIDs; empty for a server without a GPU.
        share: part of each.
        memory_mib: memory of the smallest of them in MiB (the whole card's), None if not told.
        request: the one, of those tried in order, that is met.
    """

    devices: tuple[str, ...]
    share: Fraction
    memory_mib: int | None = None
    request: Request = Request()


@dataclass(frozen=True)
class Shortage:
    """Why a request gets nothing now, in numbers. Every text about it is made from these.

    Attributes:
        total: cards of the machine, or its slices where slices were asked for.
        suitable: cards that meet the request's model and memory and that the one who asks may have
            at some time, taken or not.
        free: cards that are free for the one who asks, suitable or not.
        free_suitable: cards that are free and suitable.
        held: suitable cards in the hands of gpuspawner's servers.
        foreign: suitable cards in the hands of others.
        unavailable: suitable cards that are out of service: ill, gone or dirty.
        settling: suitable cards that nobody has and that are offered again in a moment.
        kept: suitable cards that nobody has and that are kept for others just now.
        closed: cards that would suit but that the one who asks never gets; not in ``suitable``.
        kept_until: when the first of the kept ones is free for all; None where that is not known.
        kept_from: none is kept yet, but from then on, so something shorter may have one now.
        unlinked: enough cards are free and suitable, but no set of them is linked.
        never_linked: were they all free, no set would be.
        largest_mib: what the request would get of the largest card of its kind and model, in MiB;
            None where none is told.
        others: what became of the other requests, where several were tried in order.
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
    kept: int = 0
    closed: int = 0
    kept_until: datetime | None = None
    kept_from: datetime | None = None
    unlinked: bool = False
    never_linked: bool = False
    largest_mib: int | None = None
    others: tuple[Shortage, ...] = ()

    @property
    def never(self) -> bool:
        """True if waiting can't help: the machine has too few such cards, taken or not."""
        return self.suitable < self.request.count or self.never_linked


def suits(card: Card, request: Request) -> bool:
    """True if the card, were it free, would meet the request's kind, model and memory."""
    if not of_kind(card, request) or not of_model(card, request):
        return False
    if request.min_memory_mib:
        offered = memory_offered(card, request)
        return offered is not None and offered >= request.min_memory_mib
    return True


def of_kind(card: Card, request: Request) -> bool:
    """True for a whole card where cards are asked for, for such a slice where slices are."""
    return not card.sliced and card.mig_profile.lower() == request.mig_profile.lower()


def of_model(card: Card, request: Request) -> bool:
    """True if the card, or a slice's card, is one of the models asked for."""
    model = card.model.lower()
    return not request.models or any(fnmatchcase(model, p.lower()) for p in request.models)


def memory_offered(card: Card, request: Request) -> int | None:
    """What the request would get of the card, in MiB; None if its memory is not told."""
    if card.memory_mib is None:
        return None
    return int((card.memory_mib - card.screen_mib) * request.memory_part)


def has_room(card: Card, request: Request) -> bool:
    """True if the card is offered and has room for the request's share, whether it suits or not."""
    offered = not card.unavailable and not card.sliced and card.kept is None
    return offered and card.load + request.share <= 1


def covers(wide: Request, narrow: Request) -> bool:
    """True if, on any machine, cards that meet ``narrow`` prove that ``wide`` could be met too.

    False where that can't be told from the two alone.
    """
    return (
        wide.count <= narrow.count
        and wide.share <= narrow.share
        # What a card must have in all, for its part to be large enough.
        and wide.min_memory_mib / wide.share <= narrow.min_memory_mib / narrow.share
        and _models_cover(wide.models, narrow.models)
        and wide.mig_profile.lower() == narrow.mig_profile.lower()
        and (wide.linked != "require" or (narrow.linked, wide.count) == ("require", narrow.count))
    )


def _models_cover(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return not wide or bool(narrow and all(any(_covers(w, n) for w in wide) for n in narrow))


def _covers(wide: str, narrow: str) -> bool:
    wide, narrow = wide.lower(), narrow.lower()
    if wide == narrow:
        return True
    if any(c in narrow for c in "?["):
        return False
    # A star of the narrow one can only be met by a star of the wide one.
    return fnmatchcase(narrow, wide) and ("*" not in narrow or not any(c in wide for c in "?["))
