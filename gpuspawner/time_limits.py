"""How long servers may run, by what their containers' labels promise. Pure.

The time counts from the making of the container, by the engine's clock: a hub that is restarted, or
whose own clock is set, changes nothing; nor does an admin who edits the profile meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from . import names
from .claims import LIVE_STATES, Listing, Row


def label(max_seconds: float | None) -> dict[str, str]:
    """The label for a container that may run so long; none without a limit."""
    return {} if max_seconds is None else {names.LABEL_MAX_SECONDS: f"{max_seconds:.12g}"}


def max_seconds_of(labels: Mapping[str, str]) -> float | None:
    """How long a container may run; None without a limit."""
    try:
        found = float(labels.get(names.LABEL_MAX_SECONDS, ""))
    except ValueError:
        return None  # nothing that we wrote: better a server that runs on than one killed by a slip
    return found if math.isfinite(found) and found > 0 else None


def seconds_left(row: Row, listing: Listing) -> float | None:
    """Seconds that a container may still run, negative past its end; None without a limit."""
    most = max_seconds_of(row.labels)
    return None if most is None else most - listing.age(row)


def overdue(listing: Listing, hub_id: str) -> tuple[Row, ...]:
    """The servers of this hub that run past their time."""
    return tuple(
        row
        for row in listing.rows
        if row.mine(hub_id) and row.state in LIVE_STATES
        if (left := seconds_left(row, listing)) is not None and left <= 0
    )
