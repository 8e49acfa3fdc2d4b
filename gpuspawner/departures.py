"""What was listed between two looks at the cards: newer news than the last look's. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .claims import Claim
from .devices import Inventory
from .health import WELL, Condition, Health, alive
from .states import CardState


class Departures:
    """When containers were last listed as holders at work: newer news than the last look's.

    A card whose holder ended after a look began has not been looked at since; it is settling.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[frozenset[str], float]] = {}

    def note(self, claims: Iterable[Claim], now: float) -> None:
        """Remember the holders in a listing that was read now."""
        for claim in claims:
            if alive(claim):
                self._last[claim.row.id] = (claim.devices, now)

    def lately(self) -> dict[str, frozenset[str]]:
        """Ids of the containers that were listed at work since the last look, by UUID."""
        found: dict[str, frozenset[str]] = {}
        for container, (devices, _) in self._last.items():
            for uuid in devices:
                found[uuid] = found.get(uuid, frozenset()) | {container}
        return found

    def left(self, claims: Iterable[Claim], inventory: Inventory, begun: float) -> frozenset[str]:
        """UUIDs of cards whose holder has ended since the last look began."""
        here = {c.row.id for c in claims}
        found: set[str] = set()
        for container, (devices, at) in list(self._last.items()):
            if container in here:
                continue
            if at < begun:
                del self._last[container]
                continue
            for uuid in devices:
                found |= {uuid} | inventory.neighbours(uuid)
        return frozenset(found)


#: A card whose holder has ended and that was not looked at since.
NOT_LOOKED_AT = Condition(
    CardState.SETTLING, "its last holder has just ended, and the driver was not asked since"
)


def conditions_now(health: Health, left: Iterable[str]) -> dict[str, Condition]:
    """Conditions for a decision: those of the last look, and of cards left since it began."""
    now = dict(health.conditions)
    for uuid in left:
        if now.get(uuid, WELL).state is CardState.FREE:
            now[uuid] = NOT_LOOKED_AT
    return now
