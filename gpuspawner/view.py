"""What engine and driver said at one moment: the basis of a decision, a form or a listing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .claims import Claims, Survey
from .devices import Device, Inventory
from .health import Condition, by_word
from .states import CardState


@dataclass(frozen=True)
class View:
    """What was known at one moment.

    Attributes:
        gone: cards that were seen before and are not named any more.
        conditions: how each card stands, by UUID; one that is not there is well.
    """

    inventory: Inventory
    survey: Survey
    claims: Claims
    gone: tuple[Device, ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    def condition(self, device: Device) -> Condition:
        """How a card stands; one that was never looked at, by the driver's word alone."""
        return self.conditions.get(device.uuid) or by_word(device)

    @property
    def outdated(self) -> bool:
        """True if one more look may free a card, such as one that its holder has just left."""
        return any(
            c.state is CardState.SETTLING and c.needed <= 1 for c in self.conditions.values()
        )
