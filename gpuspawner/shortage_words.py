"""What users read about a shortage: why there is no card now, and what they can do. Pure.

Filled in from the numbers of a :class:`~gpuspawner.request.Shortage`, never by hand.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction

from .messages import SAFE, gigabytes
from .request import Shortage

#: Whose need it is: said to somebody who pressed Start, and beside a profile on the form.
_YOU = "you asked for"
_THIS = "this needs"
_PARTS = {
    Fraction(1, 2): "half a GPU",
    Fraction(1, 3): "a third of a GPU",
    Fraction(1, 4): "a quarter of a GPU",
}
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
#: A text for users has fewer words.
_TOO_LONG = 40


def none_free(shortage: Shortage, *, cpu_available: bool) -> str:
    """Why there is no card now, and what the user can do.

    Args:
        shortage: the answer of :func:`~gpuspawner.placement.place`.
        cpu_available: the user may start a profile without a GPU.
    """
    words = _Words(shortage, _YOU)
    if shortage.never or shortage.total == 0:
        instead = "start without a GPU" if cpu_available else "ask the hub's admins"
        return f"{words.never()} Please choose another profile, or {instead}."
    what = words.then()
    advice = f"You can start without a GPU, or {what}." if cpu_available else f"Please {what}."
    short = "You can start without a GPU." if cpu_available else "Please try again later."
    texts = [f"{words.busy()} {rest}" for rest in (f"{advice} {SAFE}", advice, short)]
    return next((t for t in texts if len(t.split()) < _TOO_LONG), texts[-1])


def disabled(shortage: Shortage) -> str:
    """Why a profile can't be chosen on the form, in a few words."""
    words = _Words(shortage, _THIS)
    return words.never() if shortage.never or shortage.total == 0 else words.busy()


class _Words:
    """The sentences about one shortage."""

    def __init__(self, shortage: Shortage, need: str) -> None:
        self.shortage = shortage
        self.request = request = shortage.request
        self.need = need
        self.thing = "GPU slice" if request.mig_profile else "GPU"
        other_sizes = bool(request.mig_profile) and shortage.suitable < shortage.total
        #: What else than a number was asked for, to follow "GPU": `` with 40 GB``, or empty.
        self.kind = ""
        if request.models or other_sizes:
            self.kind = f" of the kind {need}"
        elif request.min_memory_mib:
            self.kind = f" with {gigabytes(request.min_memory_mib)}"

    def things(self, count: int) -> str:
        return f"{count} {self.thing}" if count == 1 else f"{count} {self.thing}s"

    def all_of(self, count: int, which: str = "") -> str:
        """``All 8 GPUs are``."""
        if count == 1:
            return f"The only {self.thing}{self.kind}{which} is"
        many = "Both" if count == 2 else f"All {count}"
        return f"{many} {self.thing}s{self.kind}{which} are"

    # -- waiting can't help -------------------------------------------------------------------

    def never(self) -> str:
        found, request, kind = self.shortage, self.request, self.kind
        if found.closed and not found.suitable:
            return f"{self.all_of(found.closed)} kept for other groups."
        if found.total == 0:
            if request.mig_profile:
                return "This machine has no GPU slices."
            return "This machine has no GPU that can be used just now."
        if found.suitable == 0:
            return f"This machine has no {self.thing}{kind}."
        if found.suitable >= request.count:
            return f"This machine has no {request.count} GPUs{kind} that are linked."
        have = f"only {self.things(found.suitable)}{kind}"
        if found.closed:
            return f"You may use {have}, {self.need} {request.count}."
        return f"This machine has {have}, {self.need} {request.count}."

    # -- waiting may help ---------------------------------------------------------------------

    def busy(self) -> str:
        found, request, kind = self.shortage, self.request, self.kind
        free = found.free_suitable
        if found.unlinked:
            they = "they" if free == request.count else f"no {request.count} of them"
            not_ = "are not" if free == request.count else "are"
            return f"{self.things(free)}{kind} are free, but {they} {not_} linked."
        if free:
            more = f" and {found.kept} {_are(found.kept)} {self._kept()}" if found.kept else ""
            return (
                f"{self.things(free)}{kind} {self._open(free)}{more}, {self.need} {request.count}."
            )
        if found.free and not found.kept:
            many = ", none of them" if found.free > 1 else ", but not one"
            return f"{self.things(found.free)} {self._open(found.free)}{many}{kind}."
        return self._none()

    def _open(self, count: int) -> str:
        """``are free``, or ``have room for half a GPU``."""
        if self.request.share == 1:
            return f"{_are(count)} free"
        part = _PARTS.get(self.request.share, f"{self.request.share} of a GPU")
        return f"{'has' if count == 1 else 'have'} room for {part}"

    def _none(self) -> str:
        """None that suits is free: how many there are of which sort."""
        found, kind = self.shortage, self.kind
        out, soon, kept = found.unavailable, found.settling, found.kept
        in_use = found.suitable - out - soon - kept
        if kept and bool(in_use) + bool(out) + bool(soon) > 1:
            out, soon = out + soon, 0
        crowded = bool(kept and in_use and out)
        parts = [
            (in_use, "in use just now", ""),
            (kept, "kept for other groups" if crowded else self._kept(), ""),
            (out, "out of service", " just now, and the admins can see why"),
            (soon, "being made ready", " and free in a moment"),
        ]
        told = [part for part in parts if part[0]]
        if self.request.share < 1 and in_use:
            rest = _rest(told[1:])
            return f"No {self.thing}{kind} {self._open(1)} just now{rest}."
        if len(told) == 1:
            _, state, more = told[0]
            # Else beside "All 8 GPUs" of another profile the numbers would not add up.
            which = " that you may use" if found.closed else ""
            return f"{self.all_of(found.suitable, which)} {state}{more}."
        (first, state, _), *others = told
        return f"{self.things(first)}{kind} {_are(first)} {state}{_rest(others)}."

    def _kept(self) -> str:
        found = self.shortage
        if found.kept_from:
            return f"kept for other groups from {_day(found.kept_from)} {_clock(found.kept_from)}"
        if found.kept_until:
            return f"kept for other groups until {_clock(found.kept_until)}"
        return "kept for other groups just now"

    def then(self) -> str:
        """What to do if not now."""
        found = self.shortage
        if found.kept_from and not found.unlinked:
            return "choose a profile that ends before then"
        if found.kept_until and found.kept == found.suitable:
            return f"try again after {_clock(found.kept_until)}"
        return "try again in a few minutes"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _rest(parts: list[tuple[int, str, str]]) -> str:
    return "".join(f", {count} {_are(count)} {what}" for count, what, _ in parts)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"


def _day(at: datetime) -> str:
    return _DAYS[at.weekday()]
