"""Reads the engine's answers: rows, facts about the engine, its two forms of time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from .asks import EngineFacts
from .claims import Row


@dataclass(frozen=True)
class EngineInfo:
    """The parts of ``GET /info`` that matter here.

    Attributes:
        cdi_devices: fully qualified CDI names the engine can inject.
        podman: True for Podman's imitation of Docker's API, which takes GPU requests by CDI only
            and does not show them in inspections.
    """

    facts: EngineFacts
    cdi_devices: frozenset[str]
    version: str
    podman: bool = False


def read_row(item: Mapping[str, Any]) -> Row:
    """One element of ``GET /containers/json``."""
    return Row(
        id=str(item["Id"]),
        created=int(item.get("Created") or 0),
        image_id=str(item.get("ImageID") or ""),
        state=str(item.get("State") or "").lower(),
        labels=dict(item.get("Labels") or {}),
        names=tuple(item.get("Names") or ()),
        image=str(item.get("Image") or ""),
        endpoints=_endpoints(item),
    )


def _endpoints(item: Mapping[str, Any]) -> tuple[str, ...]:
    # Only compared with what they were, so whatever an engine writes there will do.
    ports = sorted(str(port) for port in item.get("Ports") or ())
    return (str(item.get("NetworkSettings") or ""), *ports)


def read_info(answer: Mapping[str, Any]) -> EngineInfo:
    """The parts of ``GET /info`` that matter here."""
    runtimes = answer.get("Runtimes") or {}
    nvidia = {"nvidia"}
    for name, runtime in runtimes.items():
        path = str((runtime or {}).get("path") or (runtime or {}).get("runtimeType") or "")
        if "nvidia" in path.rpartition("/")[2]:
            nvidia.add(name)
    devices = {
        str(d.get("ID"))
        for d in answer.get("DiscoveredDevices") or ()
        if str(d.get("Source", "cdi")).lower() == "cdi"
    }
    facts = EngineFacts(frozenset(nvidia), str(answer.get("DefaultRuntime") or "runc"))
    return EngineInfo(
        facts,
        frozenset(devices),
        str(answer.get("ServerVersion") or ""),
        podman="BuildahVersion" in answer,
    )


def read_date(text: str) -> float:
    """An HTTP Date header as seconds since the epoch."""
    return parsedate_to_datetime(text).timestamp()


def read_time(text: str | None) -> float | None:
    """The engine's timestamp (RFC 3339, nanoseconds) in seconds; None for its year 1."""
    if not text or text.startswith("0001-"):
        return None
    whole, _, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if rest else ""
    if not rest:
        whole, zone = (whole[:-1], "Z") if whole.endswith("Z") else (whole[:19], whole[19:])
    moment = datetime.fromisoformat(whole + ("+00:00" if zone in ("Z", "") else zone))
    fraction = float(f"0.{digits}") if digits else 0.0
    return moment.astimezone(timezone.utc).timestamp() + fraction
