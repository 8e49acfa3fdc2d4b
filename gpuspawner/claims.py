"""Who holds what, read from one listing of the engine's containers.

A *claim* is (container, devices, size, whose). Containers of any gpuspawner hub are known by their
labels and never inspected for it; every other container is an *outsider* and is inspected once,
since what a container asked for never changes. Pure: rows and inspections in, claims out.

What an outsider asks for is read from, in Docker's own fields: ``HostConfig.DeviceRequests`` (by
UUID, MIG UUID, index, CDI name, count), ``HostConfig.Devices`` (``/dev/nvidia<minor>``), the
variable ``NVIDIA_VISIBLE_DEVICES`` where the container runs under NVIDIA's runtime, and mounts
under ``/var/run/nvidia-container-devices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from . import names
from .asks import Asks
from .devices import Device, Inventory, Slice

Whose = Literal["mine", "sibling", "outsider"]

#: States in which a container's processes may be alive, or its restart is under way.
LIVE_STATES = frozenset({"running", "paused", "restarting"})
#: States in which a container can hold nothing any more.
ENDED_STATES = frozenset({"removing", "dead"})


@dataclass(frozen=True)
class Row:
    """One row of ``GET /containers/json?all=1``.

    Attributes:
        created: seconds since the epoch, by the engine's clock, as the list shows them.
        endpoints: its addresses and published ports, to see that they have changed.
    """

    id: str
    created: int
    image_id: str
    state: str
    labels: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    image: str = ""
    endpoints: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, str]:
        """The one order that every hub sees alike: decides who yields."""
        return (self.created, self.id)

    @property
    def lease(self) -> str:
        return self.labels.get(names.LABEL_LEASE, "") if self.ours else ""

    @property
    def name(self) -> str:
        """Its own name, among those that links give it."""
        own = [n.removeprefix("/") for n in self.names]
        return next((n for n in own if "/" not in n), "")

    @property
    def ours(self) -> bool:
        """True for a container of any gpuspawner hub.

        ``docker commit`` copies labels into the new image, and so into its containers, but those
        then have another image id than the label says.
        """
        return names.LABEL_HUB in self.labels and _same_image(
            self.labels.get(names.LABEL_IMAGE, ""), self.image_id
        )

    def mine(self, hub_id: str) -> bool:
        """True for a container of the hub with this id."""
        return self.ours and self.labels[names.LABEL_HUB] == hub_id


def _same_image(a: str, b: str) -> bool:
    # Podman lists ids without the "sha256:" that Docker writes.
    return bool(a) and a.removeprefix("sha256:") == b.removeprefix("sha256:")


@dataclass(frozen=True)
class Listing:
    """One answer of the engine.

    Attributes:
        at: seconds since the epoch from the answer's own Date header: ages are measured by it,
            never by the hub's clock.
        steady: when it was answered, on a clock that nobody sets; for durations only.
        ages: seconds by container id, where more is known than the stamps tell.
    """

    rows: tuple[Row, ...]
    at: float
    steady: float = 0.0
    ages: Mapping[str, float] = field(default_factory=dict)

    def age(self, row: Row) -> float:
        """Seconds since a container was created."""
        return self.ages.get(row.id, self.at - row.created)

    def by_id(self, container_id: str) -> Row | None:
        return next((r for r in self.rows if r.id == container_id), None)

    def by_lease(self, lease: str) -> Row | None:
        return next((r for r in self.rows if lease and r.lease == lease), None)


@dataclass(frozen=True)
class Detail:
    """What one inspection told of a container.

    Attributes:
        asks: what it asked for; never changes.
        error: ``State.Error``; set when a start failed.
        finished_at: seconds since the epoch by the listing's clock; None if it never finished.
        missing: the inspection said 404 though the row is listed: it is being created.
    """

    asks: Asks = field(default_factory=Asks)
    error: str = ""
    finished_at: float | None = None
    missing: bool = False


@dataclass(frozen=True)
class Survey:
    """A listing with the inspections it called for, by container id."""

    listing: Listing
    details: Mapping[str, Detail] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A container's hold on devices.

    Attributes:
        devices: UUIDs it holds.
        size: part of each device.
        bars_exclusive: allows shares but no exclusive holder (an MPS daemon), whatever its size.
        why: for an outsider, how the claim was found, in words for the admin.
    """

    row: Row
    devices: frozenset[str]
    size: Fraction
    whose: Whose
    bars_exclusive: bool = False
    why: str = ""

    @property
    def lease(self) -> str:
        return self.row.lease

    @property
    def decided(self) -> bool:
        """True if it runs or ran: a rival that nobody can ask to yield any more.

        So is one in a state that we don't know (Podman has more of them).
        """
        return self.row.state != "created"


@dataclass(frozen=True)
class Times:
    """The protocol's delays, in seconds of the engine's clock."""

    created_grace_seconds: float = 120.0
    release_delay_seconds: float = 10.0


@dataclass(frozen=True)
class Claims:
    """All claims of one survey.

    Attributes:
        claims: in the rows' order.
        dangling: ids in the hands of outsiders that no device answers to, by container id;
            reported, blocking nothing.
    """

    claims: tuple[Claim, ...] = ()
    dangling: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def needs_detail(row: Row) -> bool:
    """True if the row's claim can't be told from the list alone.

    Ours are inspected only once exited, for the time at which they finished.
    """
    if row.state in ENDED_STATES:
        return False
    return row.state == "exited" if row.ours else True


def read_claims(
    survey: Survey, inventory: Inventory, hub_id: str, times: Times | None = None
) -> Claims:
    """Turn a survey into claims.

    Args:
        survey: a listing, and a Detail for each row for which :func:`needs_detail` holds.
        hub_id: which of ours are mine.

    Raises:
        KeyError: a needed Detail is absent; the caller must treat that as unknown, not as free.
    """
    times = times or Times()
    found: list[Claim] = []
    dangling: dict[str, tuple[str, ...]] = {}
    for row in survey.listing.rows:
        if row.state in ENDED_STATES:
            continue
        if row.ours:
            claim = _our_claim(row, survey, hub_id, times)
        else:
            claim, unresolved = _outside_claim(row, survey, inventory, times)
            if unresolved:
                dangling[row.id] = unresolved
        if claim is not None:
            found.append(claim)
    return Claims(tuple(found), dangling)


def _our_claim(row: Row, survey: Survey, hub_id: str, times: Times) -> Claim | None:
    role = row.labels.get(names.LABEL_ROLE, "")
    if role in (names.ROLE_PROBE, names.ROLE_OBSERVER):
        return None
    devices = frozenset(d for d in row.labels.get(names.LABEL_DEVICES, "").split(",") if d)
    if not devices:
        return None
    if row.state == "exited" and _released(survey.details[row.id], survey.listing.at, times):
        return None
    return Claim(
        row=row,
        devices=devices,
        size=Fraction(0) if role == names.ROLE_MPS else share_of(row.labels),
        whose="mine" if row.mine(hub_id) else "sibling",
        bars_exclusive=role == names.ROLE_MPS,
    )


def _outside_claim(
    row: Row, survey: Survey, inventory: Inventory, times: Times
) -> tuple[Claim | None, tuple[str, ...]]:
    detail = survey.details[row.id]
    if detail.missing:
        return None, ()
    devices, unresolved = detail.asks.resolve(inventory)
    why = detail.asks.why
    if detail.asks.manner == "may-use":
        # It could reach every card; it holds those that it is seen at work on.
        devices, why = _at_work_on(row.id, inventory), f"at work on the card; {why}"
    if not devices:
        return None, unresolved
    if row.state == "exited" and _released(detail, survey.listing.at, times):
        return None, ()
    if row.state == "created" and (
        detail.error or survey.listing.age(row) > times.created_grace_seconds
    ):
        return None, ()
    return Claim(row, devices, Fraction(1), "outsider", why=why), unresolved


def _at_work_on(container_id: str, inventory: Inventory) -> frozenset[str]:
    """The devices on which a container has a compute process."""
    units: dict[str, Device | Slice] = {**inventory.by_uuid, **inventory.slice_by_uuid}
    return frozenset(
        uuid
        for uuid, unit in units.items()
        if any(p.kind == "compute" and p.container_id == container_id for p in unit.processes)
    )


def _released(detail: Detail, at: float, times: Times) -> bool:
    if detail.missing:
        return True
    return detail.finished_at is not None and at - detail.finished_at > times.release_delay_seconds


def share_of(labels: Mapping[str, str]) -> Fraction:
    """The part of each device that a container of ours holds, by its label."""
    # A label we can't read is a whole card: never more room than is certain.
    try:
        share = Fraction(labels.get(names.LABEL_SHARE, "1"))
    except (ValueError, ZeroDivisionError):
        return Fraction(1)
    return share if 0 < share <= 1 else Fraction(1)


def loads(claims: Iterable[Claim], inventory: Inventory, device: str) -> list[Claim]:
    """The claims that weigh on a device: on itself, on its parent, or on its slices."""
    near = inventory.neighbours(device) | {device}
    return [c for c in claims if c.devices & near]


def describe(claim: Claim) -> dict[str, Any]:
    """JSON-ready summary for the admin's commands."""
    labels = claim.row.labels
    return {
        "container": claim.row.id,
        "name": claim.row.names[0].lstrip("/") if claim.row.names else "",
        "state": claim.row.state,
        "devices": sorted(claim.devices),
        "share": str(claim.size),
        "whose": claim.whose,
        "user": labels.get(names.LABEL_USER, "") if claim.whose != "outsider" else "",
        "server": labels.get(names.LABEL_SERVER, "") if claim.whose != "outsider" else "",
        "profile": labels.get(names.LABEL_PROFILE, "") if claim.whose != "outsider" else "",
        "lease": claim.lease,
        "created": claim.row.created,
        "why": claim.why,
    }
