"""What a profile gives, in a few words for its card on the form. Pure.

It speaks of every card that suits, free or not: what somebody gets who starts when there is room.
Where cards differ it names the range, so that nobody is promised the best of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .messages import amount, gigabytes, gpus
from .placement import closed
from .request import Card, Request, memory_offered, suits

#: So many models are named; more are only counted.
MODELS_NAMED = 3
#: How the driver ends a model's name, where people leave it out; memory is told by itself.
_MODEL_ENDS = re.compile(r"[\s-]+(\d+\s?GB|SXM\d*|PCIe|HBM\d\w*|MIG .*)$", re.IGNORECASE)
#: No line ends between a number and what it counts, and none begins with a dot.
_TIED = "\N{NO-BREAK SPACE}"
#: How it begins: one word for all of them, after which a narrow line would end.
_MAKERS = re.compile(r"^((NVIDIA|Tesla)\s+)+(?=\S)", re.IGNORECASE)


def gives(requests: Sequence[Request], cards: Sequence[Card]) -> str:
    """``1 GPU · A100 · 40 GB``; empty without a GPU, and where no card could ever do.

    Args:
        requests: tried in order; each that this machine can meet is named once.
        cards: as the user sees them.
    """
    told = [_one(r, _offered(r, cards)) for r in requests if r.count]
    return ", else ".join(dict.fromkeys(text for text in told if text))


def _offered(request: Request, cards: Sequence[Card]) -> list[Card]:
    """The suitable cards, without those that this user can't get, as long as enough are left."""
    suitable = [c for c in cards if suits(c, request)]
    for barred in (
        [c for c in suitable if c.kept or (c.unavailable and not c.settling)],
        [c for c in suitable if c.kept],
    ):
        left = [c for c in suitable if c not in barred]
        if len(left) >= request.count:
            return left
    return suitable


def _one(request: Request, offered: Sequence[Card]) -> str:
    if len(offered) < request.count:
        return ""
    parts = [_what(request), _models(c.model for c in offered), _memory(request, offered)]
    return f"{_TIED}· ".join(part for part in parts if part)


def _what(request: Request) -> str:
    count = request.count
    if request.mig_profile:
        return "1 slice of a GPU" if count == 1 else f"{count} slices of a GPU"
    if request.share < 1:
        part = amount(request.share)
        return f"{part} of a GPU" if count == 1 else f"{part} of each of {count} GPUs"
    if count > 1 and request.linked == "require":
        return f"{count} linked GPUs"
    return gpus(count) + (", linked if possible" if count > 1 and request.linked else "")


def model_name(model: str) -> str:
    """A model as people say it: ``NVIDIA A100-SXM4-40GB`` is an ``A100``."""
    short = _MAKERS.sub("", model.strip())
    while (cut := _MODEL_ENDS.sub("", short)) != short:
        short = cut
    return short


def _models(models: Iterable[str]) -> str:
    names = sorted({model_name(m) for m in models} - {""})
    if len(names) > MODELS_NAMED:
        return f"any of {len(names)} models"
    *others, last = names or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _memory(request: Request, offered: Sequence[Card]) -> str:
    told = [memory_offered(c, request) for c in offered]
    sizes = [mib for mib in told if mib is not None]
    if not sizes or len(sizes) < len(offered):
        return ""
    least, most = gigabytes(min(sizes)), gigabytes(max(sizes))
    text = least if least == most else f"{least.removesuffix(' GB')} to {most}"
    if request.count > 1:
        text += " each"
    text = text.replace(" GB", f"{_TIED}GB").replace(" each", f"{_TIED}each")
    # A part of a card's memory is held by the frameworks' good will: no wall is promised.
    if request.share < 1:
        return f"about {text}, shared, not walled off"
    return f"about {text}" if request.memory_part < 1 else text


def places(requests: Sequence[Request], cards: Sequence[Card]) -> tuple[int, int]:
    """Of a profile that gives a share: how many the suitable cards have, and how many are left.

    Cards that the user never gets count as if they were not there.
    """
    total = free = 0
    for card in cards:
        fitting = [r for r in requests if r.count and suits(card, r)]
        if not fitting or closed(card):
            continue
        share = fitting[0].share
        total += int(1 / share)
        if not card.unavailable and not card.kept:
            free += max(int((1 - card.load) / share), 0)
    return total, free
