"""What the commands tell, as JSON-ready values. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from .cards import SLICED, of_slice
from .claims import Claim, Row, Survey, describe, loads
from .devices import Device, Slice
from .health import Condition
from .states import CardState
from .time_limits import seconds_left
from .view import View

_WHOSE = {"mine": "this hub", "sibling": "another hub", "outsider": "outside"}


def devices_report(view: View, hub_id: str) -> dict[str, Any]:
    """Every device with its health, its state and who holds it."""
    inventory = view.inventory
    return {
        "at": _moment(view.survey),
        "hub": hub_id or None,
        "source": inventory.source,
        "complete": inventory.complete,
        "driver_version": inventory.driver_version,
        "cuda_version": inventory.cuda_version,
        "devices": [_device(d, view) for d in (*inventory.devices, *view.gone)],
        "links": [asdict(link) for link in inventory.links],
    }


def _device(device: Device, view: View) -> dict[str, Any]:
    near = loads(view.claims.claims, view.inventory, device.uuid) if device.uuid else []
    condition = view.condition(device)
    state, why = _state(near, condition)
    if device.mig and state in (CardState.FREE.value, CardState.SETTLING.value):
        state, why = "sliced", SLICED
    return {
        **asdict(device),
        "slices": [_slice(one, device, condition, view) for one in device.slices],
        "state": state,
        "why": why,
        "holders": [_claim(claim, view.survey) for claim in near],
    }


def _slice(one: Slice, device: Device, parent: Condition, view: View) -> dict[str, Any]:
    # Also of a card that is gone: its slices are not in the inventory any more.
    near = [c for c in view.claims.claims if c.devices & {one.uuid, device.uuid}]
    state, why = _state(near, of_slice(one, parent, view.conditions))
    return {
        **asdict(one),
        "state": state,
        "why": why,
        "holders": [_claim(claim, view.survey) for claim in near],
    }


def _state(near: list[Claim], condition: Condition) -> tuple[str, str]:
    """The first that applies, and why, in words."""
    strangers = [claim for claim in near if claim.whose == "outsider"]
    applying = {condition.state}
    if near:
        applying.add(CardState.FOREIGN if strangers else CardState.HELD)
    state = CardState.first(applying)
    why = condition.why or (strangers[0].why if strangers else "")
    return state.value, why


def leases_report(view: View, hub_id: str) -> dict[str, Any]:
    """Every container's hold on devices, and ids in outsiders' hands that no device answers to."""
    survey = view.survey
    return {
        "at": _moment(survey),
        "hub": hub_id or None,
        "leases": [_claim(claim, survey) for claim in view.claims.claims],
        "dangling": [
            {"container": container, "name": _name(survey.listing.by_id(container)), "ids": ids}
            for container, ids in view.claims.dangling.items()
        ],
    }


def _claim(claim: Claim, survey: Survey) -> dict[str, Any]:
    told = describe(claim)
    left = seconds_left(claim.row, survey.listing) if claim.row.ours else None
    return {
        **told,
        "whose": _WHOSE[claim.whose],
        "age_seconds": max(0, round(survey.listing.age(claim.row))),
        "seconds_left": None if left is None else max(0, round(left)),
    }


def _name(row: Row | None) -> str:
    return row.names[0].lstrip("/") if row and row.names else ""


def _moment(survey: Survey) -> str:
    """The engine's time of the listing, in UTC."""
    return datetime.fromtimestamp(survey.listing.at, timezone.utc).isoformat()
