"""What engine and driver said at one moment: the basis of a decision, a form or a listing. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .claims import Claims, Survey
from .devices import Inventory


@dataclass(frozen=True)
class View:
    """What was known at one moment."""

    inventory: Inventory
    survey: Survey
    claims: Claims
