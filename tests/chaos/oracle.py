"""Who may run on a card: judged from what the engine showed, by rules of our own (pure).

A card is *overfull* when the containers that run on it ask for more than one of it. That is a
*double grant* if a hub started the last of them. It is not where somebody else did: an outsider
who started later, or a hand that started a hub's container again after its card was free.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any

#: A container that was restarted from outside holds its card for this long after its end.
RELEASE_SECONDS = 10.0
#: Listings show whole seconds: what is closer to a limit than this is not judged by it.
SLACK_SECONDS = 2.0
#: States in which a container's processes live.
RUNNING = frozenset({"running", "paused", "restarting"})
_RING = 60


@dataclass(frozen=True)
class Container:
    """What an inspection told of a container.

    Attributes:
        hub: id of the hub it says it belongs to; empty for an outsider's.
        cards: UUIDs that its device requests name.
        share: of each card.
        created, started, finished: seconds since the epoch; 0 where it never did.
        state: as the engine calls it.
    """

    id: str
    name: str = ""
    hub: str = ""
    user: str = ""
    server: str = ""
    cards: frozenset[str] = frozenset()
    share: Fraction = Fraction(1)
    created: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    state: str = "running"
    labelled: frozenset[str] = frozenset()

    def __str__(self) -> str:
        whose = f"{self.user}/{self.server} of hub {self.hub[:6]}" if self.hub else "an outsider"
        return f"{self.id[:12]} ({whose})"


@dataclass(frozen=True)
class Violation:
    """Something that must never be; ``story`` is what happened around the card before."""

    kind: str
    text: str
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}: {self.text}", *(f"    {line}" for line in self.story)])


def read_container(inspection: Mapping[str, Any], uuids: Sequence[str]) -> Container:
    """Read an inspection; ``uuids`` are the cards in the order of their indices."""
    labels = inspection["Config"].get("Labels") or {}
    cards: set[str] = set()
    for request in inspection["HostConfig"].get("DeviceRequests") or ():
        names = [str(name) for name in request.get("DeviceIDs") or ()]
        cards |= {name.rpartition("=")[2] for name in names}
        count = request.get("Count") or 0
        if not names and count:
            cards |= set(uuids[: count if count > 0 else len(uuids)])
    state = inspection["State"]
    return Container(
        id=inspection["Id"],
        name=inspection["Name"].lstrip("/"),
        hub=labels.get("gpuspawner.hub", ""),
        user=labels.get("gpuspawner.user", ""),
        server=labels.get("gpuspawner.server", ""),
        cards=frozenset(cards),
        share=Fraction(labels.get("gpuspawner.share", "1")),
        created=stamp(inspection["Created"]),
        started=stamp(state["StartedAt"]),
        finished=stamp(state["FinishedAt"]),
        state=state["Status"],
        labelled=frozenset(filter(None, labels.get("gpuspawner.devices", "").split(","))),
    )


def stamp(text: str) -> float:
    """Seconds since the epoch of an engine's time; 0 for the one that means never."""
    if text.startswith("0001-"):
        return 0.0
    head, _, fraction = text.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(f"{head}+00:00").timestamp()
    return seconds + float(f"0.{fraction or 0}")


@dataclass
class Oracle:
    """Judges every sample of running containers, and keeps what happened for the stories.

    Attributes:
        cards: the UUIDs there are.
        grace_seconds: for so long an outsider's container that was never started holds its card.
        counts: of whatever is counted, for the report.
    """

    cards: Sequence[str]
    grace_seconds: float
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    granted: set[str] = field(default_factory=set)
    _answered: dict[str, float] = field(default_factory=dict)
    _started_by_hand: set[str] = field(default_factory=set)
    _told: set[tuple[str, ...]] = field(default_factory=set)
    _rings: dict[str, deque[tuple[float, str]]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # -- what happened ------------------------------------------------------------------------

    def note(self, at: float, text: str, cards: Iterable[str] = ("",)) -> None:
        """Remember something for the stories of these cards; by default of all."""
        with self._lock:
            for card in cards:
                self._rings.setdefault(card, deque(maxlen=_RING)).append((at, text))

    def count(self, what: str, many: int = 1) -> None:
        with self._lock:
            self.counts[what] += many

    def outsider_created(self, container: str, at: float) -> None:
        """The engine has answered an outsider's create: from now on every listing shows it."""
        self._answered[container] = at

    def outsider_failed(self, container: str) -> None:
        """An outsider's start was refused: its container holds nothing any more."""
        self._answered.pop(container, None)

    def may_be_started_by_hand(self, container: str) -> None:
        """Somebody else restarts this container, or told the engine to do so."""
        self._started_by_hand.add(container)

    # -- judging ------------------------------------------------------------------------------

    def overfull(self, running: Iterable[Container]) -> dict[str, list[Container]]:
        """Cards on which more runs than fits, a hub's container among it."""
        on: dict[str, list[Container]] = {}
        for one in running:
            for card in one.cards:
                on.setdefault(card, []).append(one)
        found: dict[str, list[Container]] = {}
        for card, listed in on.items():
            members = _together(listed)
            if any(one.hub for one in members) and sum(_size(one) for one in members) > 1:
                found[card] = members
        return found

    def sample(self, at: float, running: Sequence[Container]) -> None:
        """Judge what runs at one moment."""
        self.count("samples")
        for one in running:
            if one.hub and one.cards and one.id not in self.granted:
                self.granted.add(one.id)
                self.note(at, f"{one} runs", one.cards)
                self._check_label(one)
        for card, members in self.overfull(running).items():
            key = (card, *sorted(f"{one.id} {one.started}" for one in members))
            if key in self._told:
                continue
            self._told.add(key)
            culprit = self.blame(members)
            if culprit is None:
                self.count("cards taken by force from outside")
            else:
                text = f"{culprit} was started on {card}, where there run " + ", ".join(
                    f"{one} since {one.started:.3f}" for one in members
                )
                self.violate("double grant", text, card)

    def blame(self, members: Sequence[Container]) -> Container | None:
        """The container that its hub should not have started; None if others did it."""
        *before, last = sorted(members, key=lambda one: one.started)
        if not last.hub:
            return None
        rivals = [one for one in before if self._was_there(one, last)]
        if last.id not in self._started_by_hand:
            return last if sum(_size(one) for one in rivals) + last.share > 1 else None
        # Its hub is not to blame for that start, but another's for one before the card was free.
        free = last.finished + RELEASE_SECONDS - SLACK_SECONDS
        early = [one for one in rivals if one.hub and last.finished and one.started < free]
        return early[-1] if early else None

    def _was_there(self, rival: Container, mine: Container) -> bool:
        """True if every listing made after ``mine`` was created showed the rival's claim."""
        if rival.hub:
            # Who started it from outside did not look whether there was room.
            by_hand = rival.id in self._started_by_hand
            return not by_hand or bool(rival.finished) or rival.started < mine.created
        answered = self._answered.get(rival.id)
        if answered is None or answered > mine.created:
            return False
        if rival.finished:  # restarted: free for a while, if that took long
            return rival.started - rival.finished < RELEASE_SECONDS - SLACK_SECONDS
        # One that waits for its start longer than the grace holds nothing.
        return rival.started - rival.created < self.grace_seconds - SLACK_SECONDS

    def _check_label(self, one: Container) -> None:
        if one.cards != one.labelled:
            self.violate(
                "wrong label",
                f"{one} asked for {sorted(one.cards)}, its label says {sorted(one.labelled)}",
                *one.cards,
            )

    def violate(self, kind: str, text: str, *cards: str) -> None:
        """Keep a violation; where it is about cards, with what happened before to them and to all.

        A name that is no card's has no story.
        """
        with self._lock:
            own = [line for card in cards for line in self._rings.get(card, ())]
            ring = {*own, *self._rings.get("", ())} if own else set()
            story = tuple(f"{at:.3f} {what}" for at, what in sorted(ring))
            self.violations.append(Violation(kind, text, story))


def _together(listed: Sequence[Container]) -> list[Container]:
    """Without those that ended before the last was started: a list may show them a moment more."""
    latest = max(one.started for one in listed)
    return [one for one in listed if one.state in RUNNING or one.finished > latest]


def _size(one: Container) -> Fraction:
    return one.share if one.hub else Fraction(1)
