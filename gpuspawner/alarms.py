"""What is wrong with cards and the servers on them, each told once while it lasts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from . import messages, names
from .claims import LIVE_STATES, Claim, loads
from .health import Condition, Health, Look
from .states import CardState


class Key(NamedTuple):
    """What an alarm is about; while it lasts, its words may change."""

    what: str
    uuid: str
    container: str = ""


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong.

    Attributes:
        text: for the admin: what, why, and what to do.
        over: for the admin, once it is over.
        lease: the server it concerns; empty if none.
        notice: for that server's user; empty if there is nothing to tell.
    """

    text: str
    over: str
    lease: str = ""
    notice: str = ""

    @property
    def serious(self) -> bool:
        """True if a running server suffers from it."""
        return bool(self.lease)


class Alarms:
    """The alarms that last."""

    def __init__(self) -> None:
        self._lasting: dict[Key, Alarm] = {}

    def update(self, now: Mapping[Key, Alarm]) -> tuple[list[Alarm], list[Alarm]]:
        """Take what is wrong now; what has begun and what is over since the last time."""
        begun = [alarm for key, alarm in now.items() if key not in self._lasting]
        over = [alarm for key, alarm in self._lasting.items() if key not in now]
        self._lasting = dict(now)
        return begun, over

    def notices(self, lease: str) -> tuple[str, ...]:
        """What the user of a server is to be told, each text once."""
        texts = (a.notice for a in self._lasting.values() if lease and a.lease == lease)
        return tuple(dict.fromkeys(text for text in texts if text))


#: What the admin can do about a card.
_FIXES = {
    CardState.ILL: (
        "Look at 'nvidia-smi -q' and 'dmesg | grep -i xid'; the driver's recovery action says what "
        "the card needs. It is offered again by itself once it is well"
    ),
    CardState.GONE: (
        "Look at 'nvidia-smi -L' and 'dmesg | grep -i nvrm'; the card may have fallen off the bus, "
        "which a reboot mends. It is offered again by itself once it is named again"
    ),
    CardState.DIRTY: (
        "End that work, or declare its container with the label gpuspawner.role=observer or in "
        "GPUPool.observers if it only monitors. The card is offered again by itself once it is "
        "clean"
    ),
}


def alarms_of(look: Look, health: Health) -> dict[Key, Alarm]:
    """What is wrong after a look."""
    found: dict[Key, Alarm] = {}
    for device in (*health.inventory.devices, *health.gone):
        near = loads(look.after.claims.claims, health.inventory, device.uuid)
        servers = [c for c in near if c.whose == "mine" and c.row.state in LIVE_STATES]
        card = f"GPU {device.index} ({device.uuid or 'no UUID'})"
        condition = health.of(device.uuid)
        fault = condition.fault
        if fault is CardState.DIRTY:
            found |= _strangers(card, device.uuid, condition, servers)
        elif fault is not None:
            found |= _faulty(card, device.uuid, fault, condition, servers)
        for stranger in near:
            if stranger.whose == "outsider" and stranger.row.state in LIVE_STATES:
                found |= _intruder(card, device.uuid, stranger, servers)
    return found


def _faulty(
    card: str, uuid: str, fault: CardState, condition: Condition, servers: Iterable[Claim]
) -> dict[Key, Alarm]:
    fix = _FIXES[fault]
    found = {
        Key("fault", uuid): Alarm(
            text=f"{card} is {fault.value} and not offered: {condition.why}. {fix}",
            over=f"{card} is well and offered again",
        )
    }
    for server in servers:
        who = _server(server)
        found[Key("fault", uuid, server.row.id)] = Alarm(
            text=(
                f"{card} of the running {who} is {fault.value}: {condition.why}. {fix}. The server "
                "keeps it until it is stopped; its user is told on the hub's pages"
            ),
            over=f"{card} of the running {who} is well again",
            lease=server.lease,
            notice=messages.card_ill(),
        )
    return found


def _strangers(
    card: str, uuid: str, condition: Condition, servers: list[Claim]
) -> dict[Key, Alarm]:
    fix = _FIXES[CardState.DIRTY]
    if not servers:
        text = f"{card} is dirty and not offered: {condition.why}. {fix}"
        return {Key("dirty", uuid): Alarm(text, f"{card} is clean and offered again")}
    return {
        Key("dirty", uuid, server.row.id): Alarm(
            text=(
                f"Somebody else is at work on {card} of the running {_server(server)}: "
                f"{condition.why}. {fix}; the server keeps it, and nothing more goes there"
            ),
            over=f"Nobody else is at work any more on {card} of the running {_server(server)}",
            lease=server.lease,
        )
        for server in servers
    }


def _intruder(card: str, uuid: str, stranger: Claim, servers: Iterable[Claim]) -> dict[Key, Alarm]:
    name = stranger.row.names[0].lstrip("/") if stranger.row.names else ""
    what = f"container {stranger.row.id[:12]} {name}".rstrip()
    return {
        Key("intruder", uuid, server.row.id): Alarm(
            text=(
                f"Somebody else's {what} has taken {card} of the running {_server(server)} "
                f"({stranger.why}). Stop it, or declare it with the label gpuspawner.role=observer "
                "or in GPUPool.observers if it only monitors; the server keeps the card, and "
                "nothing more goes there"
            ),
            over=f"Nobody else's container has {card} of the running {_server(server)} any more",
            lease=server.lease,
        )
        for server in servers
    }


def _server(claim: Claim) -> str:
    labels = claim.row.labels
    server = labels.get(names.LABEL_SERVER, "")
    whose = f"user {labels.get(names.LABEL_USER, '?')}"
    return f"server {server!r} of {whose}" if server else f"server of {whose}"
