"""What may be removed because nobody owns it any more (pure; the pool carries it out).

A container of ours that no spawner of this process knows is left over from a crash, or belongs to
another hub. Which of the two decides what may be done; see the cases in :func:`leftovers`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from .claims import LIVE_STATES, Listing, Row

Why = Literal["never-started", "orphan", "ended", "other-hub-stuck"]


@dataclass(frozen=True)
class Leftover:
    """A container to remove.

    Attributes:
        force: True to stop it if it runs.
    """

    row: Row
    why: Why
    force: bool


@dataclass(frozen=True)
class Cleaning:
    """The cleaner's verdict on one listing.

    Attributes:
        remove: what to remove now.
        alarms: running containers that carry this hub's id though this hub did not start them:
            another hub has a copy of it.
    """

    remove: tuple[Leftover, ...] = ()
    alarms: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Ownership:
    """What this process knows.

    Attributes:
        hub_id: of this hub.
        known: leases of attempts, running servers and removals under way.
        in_database: container ids that a row of the hub's database names.
        earlier: container ids in this process's first listing: what was there before it. By id,
            since the clock of the engine's host may have been set meanwhile.
        watching_seconds: for how long this process has looked.
        keep_ended: True if ended containers are wanted for a restart (``remove = False``).
    """

    hub_id: str
    known: Collection[str]
    in_database: Collection[str]
    earlier: Collection[str]
    watching_seconds: float
    keep_ended: bool = False


def leftovers(
    listing: Listing,
    own: Ownership,
    *,
    created_grace_seconds: float,
    orphan_grace_seconds: float,
) -> Cleaning:
    """Decide what to clean.

    - Mine, older than this process: created → at once, unforced; running → once this process has
      looked for ``orphan_grace_seconds``, and only if no row of the database names it.
    - Mine, newer: created → after ``created_grace_seconds``; running → never, an alarm.
    - Mine, ended, named by nobody: like a running one, unforced.
    - Another hub's: created, past the grace → unforced (it may be starting: then it stays).
    """
    remove: list[Leftover] = []
    alarms: list[Row] = []
    orphans_due = own.watching_seconds > orphan_grace_seconds
    for row in listing.rows:
        if not row.ours or row.lease in own.known:
            continue
        age = listing.age(row)
        if not row.mine(own.hub_id):
            if row.state == "created" and age > created_grace_seconds:
                remove.append(Leftover(row, "other-hub-stuck", force=False))
            continue
        older = row.id in own.earlier
        if row.state == "created":
            if older or age > created_grace_seconds:
                remove.append(Leftover(row, "never-started", force=False))
        elif row.id in own.in_database:
            continue
        elif row.state in LIVE_STATES:
            if not older:
                alarms.append(row)
            elif orphans_due:
                remove.append(Leftover(row, "orphan", force=True))
        elif row.state == "exited" and older and not own.keep_ended and orphans_due:
            remove.append(Leftover(row, "ended", force=False))
    return Cleaning(tuple(remove), tuple(alarms))
