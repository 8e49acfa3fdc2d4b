"""Ages by two clocks: the stamps on the engine's containers, and when this process saw what. Pure.

An engine's clock may be set while containers are there: after that its stamps lie in the future, or
hours back, while nothing has aged. So a stamp is read once, when this process first sees it, and
believed only within what it has seen by a clock that nobody sets: nothing is older than since it
was last not listed, nor younger than nothing. From there on that clock alone counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .claims import Listing, Row


@dataclass
class _Sighting:
    """What is known of one container, by the steady clock.

    Attributes:
        born: when it was created.
        in_state_after: it was in another state then, or not there.
        finished: the stamp that was read last.
        ended: when that was.
    """

    born: float
    state: str
    in_state_after: float
    finished: float | None = None
    ended: float = 0.0


class Sightings:
    """What this process has seen of the listed containers.

    Attributes:
        first: ids in this process's first listing: what was there before it could make anything;
            None until there was one.
        since: when that was, by the steady clock.
    """

    def __init__(self) -> None:
        self.first: frozenset[str] | None = None
        self.since = math.inf
        self._seen: dict[str, _Sighting] = {}
        self._begun = -math.inf

    def listing(self, rows: Iterable[Row], at: float, *, begun: float, now: float) -> Listing:
        """Take a listing in.

        Args:
            at: the engine's own time of its answer.
            begun: steady time before it was asked for.
            now: steady time of its answer.
        """
        listing = Listing(tuple(rows), at, steady=now)
        if self.first is None:
            self.first, self.since = frozenset(row.id for row in listing.rows), now
        if begun >= self._begun:
            # Else a later one was answered before it: it tells nothing new.
            self._take_in(listing, begun)
        known = [row for row in listing.rows if row.id in self._seen]
        return Listing(
            listing.rows, at, steady=now, ages={r.id: now - self._seen[r.id].born for r in known}
        )

    def _take_in(self, listing: Listing, begun: float) -> None:
        seen: dict[str, _Sighting] = {}
        for row in listing.rows:
            one = self._seen.get(row.id)
            if one is None:
                born = _moment(row.created, listing, after=self._begun)
                one = _Sighting(born, row.state, self._begun)
            elif one.state != row.state:
                one.state, one.in_state_after = row.state, self._begun
            seen[row.id] = one
        self._seen, self._begun = seen, begun

    def finished(self, row: Row, stamp: float | None, listing: Listing) -> float | None:
        """When an exited container finished, on the clock of this listing.

        Args:
            stamp: its own ``FinishedAt``.
        """
        one = self._seen.get(row.id)
        if stamp is None or one is None or row.state != "exited" or one.state != "exited":
            return stamp
        if one.finished != stamp:
            # It may have run and ended again between two listings: the stamp tells one end from
            # another, if nothing else.
            one.finished = stamp
            one.ended = _moment(stamp, listing, after=one.in_state_after)
        return listing.at - (listing.steady - one.ended)


def _moment(stamp: float, listing: Listing, *, after: float) -> float:
    """The steady time of a stamp that is seen for the first time, and lies after ``after``."""
    return min(max(listing.steady - (listing.at - stamp), after), listing.steady)
