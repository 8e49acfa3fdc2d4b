"""Cards kept for groups, always or by weekday and hour: who may have which of them now. Pure.

``GPUPool.reserved_for`` keeps cards for groups always, ``GPUPool.bookings`` for some hours of the
week (read in :mod:`gpuspawner.bookings`). While a booking runs it goes before what is reserved.
Before it begins, others may have its cards only for something that ends in time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from .request import Card, Kept

#: How long before a booking a server must have ended: a start takes time, and so does an end.
SPARE = timedelta(minutes=10)
#: For how many days bookings are looked at, from yesterday on: a booking that began then may still
#: run, and between any two of the same weekday there is to be a whole week after now.
_AHEAD_DAYS = 16
_WEEK_MINUTES = 7 * 24 * 60
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True)
class Window:
    """Hours of the week.

    Attributes:
        days: on which it begins, 0 for Monday.
        begins, ends: by the clock of the zone; one that ends no later than it begins ends on the
            day after.
        zone: name of a time zone; empty for the hub's own.
    """

    days: frozenset[int]
    begins: time
    ends: time
    zone: str = ""

    def runs(self, now: datetime) -> Iterable[tuple[datetime, datetime]]:
        """When it begins and ends, in UTC and in order, from the one that may run now on."""
        zone = ZoneInfo(self.zone) if self.zone else now.tzinfo
        first = now.astimezone(zone).date() - timedelta(days=1)
        for day in (first + timedelta(days=n) for n in range(_AHEAD_DAYS)):
            if day.weekday() in self.days:
                last = day if self.ends > self.begins else day + timedelta(days=1)
                yield _moment(day, self.begins, zone), _moment(last, self.ends, zone)

    def minutes(self) -> list[tuple[int, int]]:
        """The minutes of a week that it takes, from Monday on; one may go on past Sunday."""
        begins, ends = (t.hour * 60 + t.minute for t in (self.begins, self.ends))
        length = (ends - begins) % (24 * 60) or 24 * 60
        return [(d * 24 * 60 + begins, d * 24 * 60 + begins + length) for d in sorted(self.days)]

    def overlaps(self, other: Window) -> bool:
        """True if both may run at one time; always where their zones are not the same."""
        return self.zone != other.zone or any(
            a < d + shift and c + shift < b
            for a, b in self.minutes()
            for c, d in other.minutes()
            for shift in (-_WEEK_MINUTES, 0, _WEEK_MINUTES)
        )


def _moment(day: date, at: time, zone: tzinfo | None) -> datetime:
    # Only in UTC can times be compared across a change of the clocks.
    return datetime.combine(day, at, zone).astimezone(timezone.utc)


@dataclass(frozen=True)
class Keep:
    """Some cards that are kept for groups.

    Attributes:
        patterns: UUIDs, or names and shell patterns of models. A slice follows its card.
        count: so many cards instead, those with the highest index among the ones in service.
        window: when; None for always.
    """

    groups: frozenset[str]
    patterns: tuple[str, ...] = ()
    count: int = 0
    window: Window | None = None

    def names(self, card: Card) -> bool:
        """True if it names the card, its parent or its model."""
        known = (card.uuid.lower(), card.parent.lower(), card.model.lower())
        return any(fnmatchcase(text, p.lower()) for p in self.patterns for text in known if text)


@dataclass(frozen=True)
class Picked:
    """What is kept of a machine.

    Attributes:
        cards: UUIDs of cards and slices, beside the entry that keeps them.
        unknown: patterns that no card answers to.
    """

    cards: tuple[tuple[Keep, frozenset[str]], ...] = ()
    unknown: tuple[str, ...] = ()

    def of(self, card: Card) -> list[Keep]:
        """The entries that keep a card."""
        return [keep for keep, uuids in self.cards if card.uuid in uuids]


#: Of a machine that is open to all.
NOTHING_KEPT = Picked()


def pick(keeps: Sequence[Keep], cards: Sequence[Card]) -> Picked:
    """Which cards each entry keeps.

    Entries that give a number take cards that no other entry has at the same time, as long as there
    are any: first those that are always kept, then bookings, each in the order of the list.
    """
    named = {k: [c for c in cards if k.names(c)] for k in dict.fromkeys(keeps) if k.patterns}
    found = [(k, frozenset(c.uuid for c in named[k])) for k in keeps if k.patterns]
    units = [c for c in cards if not c.parent and c.uuid]
    in_service = sorted(
        (c for c in units if _in_service(c, cards)),
        key=lambda c: (c.index, c.uuid),
        reverse=True,
    )
    for keep in sorted((k for k in keeps if not k.patterns), key=lambda k: k.window is not None):
        taken = {u for other, uuids in found if _at_one_time(keep, other) for u in uuids}
        free = [c.uuid for c in in_service if c.uuid not in taken]
        found.append((keep, frozenset(free[: keep.count])))
    whole = ((keep, _with_slices(uuids, cards)) for keep, uuids in found)
    unknown = [
        p
        for k in named
        for p in k.patterns
        if not any(replace(k, patterns=(p,)).names(c) for c in cards)
    ]
    return Picked(tuple(whole), tuple(dict.fromkeys(unknown)))


def _in_service(card: Card, cards: Iterable[Card]) -> bool:
    """True if it, or one of its slices, is offered now or in a moment."""
    if card.sliced:
        return any(_in_service(c, ()) for c in cards if c.parent == card.uuid)
    return not card.unavailable or card.settling


def _at_one_time(a: Keep, b: Keep) -> bool:
    return a.window is None or b.window is None or a.window.overlaps(b.window)


def _with_slices(uuids: Collection[str], cards: Iterable[Card]) -> frozenset[str]:
    return frozenset(c.uuid for c in cards if c.uuid in uuids or c.parent in uuids) - {""}


def keep_cards(
    cards: Sequence[Card],
    picked: Picked,
    *,
    groups: frozenset[str],
    max_seconds: float | None,
    now: datetime,
) -> tuple[Card, ...]:
    """The cards as somebody sees them: which are kept for others, which for them.

    Args:
        groups: they are in.
        max_seconds: for which their server may run; None for ever.
        now: with a time zone.
    """
    if not picked.cards:
        return tuple(cards)
    now_utc = now.astimezone(timezone.utc)
    seen: list[Card] = []
    known: dict[tuple[Keep, ...], tuple[Kept | None, bool]] = {}
    for card in cards:
        keeps = tuple(picked.of(card))
        if keeps not in known:
            known[keeps] = _stand(keeps, groups, max_seconds, now, now_utc)
        kept, own = known[keeps]
        seen.append(replace(card, kept=kept, own=own) if kept or own else card)
    return tuple(seen)


def _stand(
    keeps: Sequence[Keep],
    groups: frozenset[str],
    max_seconds: float | None,
    now: datetime,
    now_utc: datetime,
) -> tuple[Kept | None, bool]:
    """How cards with these entries stand to somebody: kept from them, and their own."""
    reserved = [k for k in keeps if k.window is None]
    mine = [k for k in keeps if not k.groups.isdisjoint(groups)]
    shut_out = bool(reserved) and not any(k in mine for k in reserved)
    others = [k for k in keeps if k.window is not None and k not in mine]
    spans = _spans(others, now)
    longest = timedelta.max if max_seconds is None else timedelta(seconds=max_seconds) + SPARE
    booked = [k for k in mine if k.window is not None]
    running = [k for k in keeps if k.window is not None and _until(k, now, now_utc)]
    never = not booked and (shut_out or (bool(spans) and _longest_gap(spans, now_utc) < longest))
    if any(k in mine for k in running):
        return None, True
    if running:
        until = max(end for k in running if (end := _until(k, now, now_utc)))
        local = until.astimezone(now.tzinfo)
        return Kept(_words(running), None if never else local, always=never), False
    if shut_out:
        return Kept(_words(reserved), always=never), False
    ahead = [begin for begin, _ in spans if begin > now_utc]
    if ahead and ahead[0] - now_utc < longest:
        begins = ahead[0].astimezone(now.tzinfo)
        return Kept(_words(others), begins=begins, always=never), False
    return None, bool(reserved)


def _spans(keeps: Iterable[Keep], now: datetime) -> list[tuple[datetime, datetime]]:
    """When any of these bookings runs, in order."""
    return sorted(run for k in keeps if k.window is not None for run in k.window.runs(now))


def _until(keep: Keep, now: datetime, now_utc: datetime) -> datetime | None:
    """When a booking that runs now ends; None if it does not run."""
    if keep.window is None:
        return None
    runs = (end for begin, end in keep.window.runs(now) if begin <= now_utc < end)
    return max(runs, default=None)


def _longest_gap(spans: Sequence[tuple[datetime, datetime]], now: datetime) -> timedelta:
    """The longest time without any booking: what can't end in it never gets such a card."""
    gap, free_from = timedelta(0), now
    for begin, end in spans:
        gap, free_from = max(gap, begin - free_from), max(free_from, end)
    return gap


def _words(keeps: Sequence[Keep]) -> str:
    groups = ", ".join(sorted({g for k in keeps for g in k.groups}))
    if any(k.window is None for k in keeps):
        return f"reserved for {groups}"
    windows = "; ".join(dict.fromkeys(_hours(k.window) for k in keeps if k.window is not None))
    return f"booked for {groups} ({windows})"


def _hours(window: Window) -> str:
    days = ", ".join(DAYS[d] for d in sorted(window.days))
    zone = f" {window.zone}" if window.zone else ""
    return f"{days} {window.begins:%H:%M} to {window.ends:%H:%M}{zone}"
