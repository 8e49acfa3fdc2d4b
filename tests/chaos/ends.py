"""What must be true once the noise is over, asked until it is, or the time is."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from ground.engine import Engine
from ground.hub import Hub

from .oracle import Oracle
from .wire import Refused, Silent, Wire

_LABEL_HUB, _LABEL_USER, _LABEL_SERVER = "gpuspawner.hub", "gpuspawner.user", "gpuspawner.server"
_LIVE = ("running", "paused", "restarting")
#: A container that nobody lists is forgotten if it was so in each of so many looks.
_LOOKS = 5


@dataclass(frozen=True)
class Server:
    """What a hub says of a server that is active."""

    user: str
    name: str
    ready: bool
    pending: str
    container: str

    @property
    def place(self) -> str:
        return f"{self.user}/{self.name}" if self.name else self.user


def read_servers(users: Sequence[dict[str, Any]]) -> list[Server]:
    """From the hub's models of its users."""
    return [
        Server(
            user=user["name"],
            name=one["name"],
            ready=one["ready"],
            pending=one["pending"] or "",
            container=(one.get("state") or {}).get("object_id", ""),
        )
        for user in users
        for one in user["servers"].values()
    ]


def disagreements(
    servers: Sequence[Server], rows: Sequence[dict[str, Any]], hub_id: str
) -> dict[tuple[str, str], str]:
    """What a hub and the engine say differently, by kind and container or server."""
    states = {row["Id"]: row["State"] for row in rows}
    found: dict[tuple[str, str], str] = {}
    for one in servers:
        state = states.get(one.container, "absent")
        if one.ready and state not in _LIVE:
            found["lost server", one.place] = (
                f"{one.place} is ready, but its container {one.container[:12]!r} is {state}"
            )
        elif one.pending:
            found["never settled", one.place] = f"{one.place} is still pending {one.pending}"
    named = {one.container for one in servers}
    for row in rows:
        labels = row["Labels"]
        if labels.get(_LABEL_HUB) == hub_id and row["Id"] not in named:
            whose = f"{labels.get(_LABEL_USER)}/{labels.get(_LABEL_SERVER)}"
            found["orphan", row["Id"]] = (
                f"container {row['Id'][:12]} of {whose} is {row['State']}, and its hub has no "
                "such server"
            )
    return found


class Ends:
    """The checks at the end; each returns when it holds, or has told the oracle that it does not.

    Args:
        deadline_seconds: for each check.
    """

    def __init__(
        self, engine: Engine, hubs: Sequence[Hub], wire: Wire, oracle: Oracle,
        *, deadline_seconds: float,
    ) -> None:  # fmt: skip
        self._engine, self._hubs, self._wire, self._oracle = engine, hubs, wire, oracle
        self._deadline_seconds = deadline_seconds

    def until_none(self, problems: Callable[[], dict[tuple[str, str], str]]) -> None:
        """Ask until there is none; what is still one at the deadline is a violation."""
        deadline = time.monotonic() + self._deadline_seconds
        while True:
            try:
                found = problems()
            except (requests.RequestException, Silent, Refused) as error:
                found = {("no answer", ""): str(error)}
            if not found:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        for (kind, which), text in found.items():
            self._oracle.violate(kind, text, which)

    # -- containers that the engine forgot ----------------------------------------------------

    def end_forgotten(self) -> None:
        """End containers that run under containerd though the engine lists no running one.

        A dockerd that is killed in the middle of a start can leave one. No hub can know of it.
        """
        looks: list[dict[str, int]] = []
        while len(looks) < _LOOKS:
            live = {row["Id"] for row in self._wire.containers() if row["State"] in _LIVE}
            looks.append({s: pid for s, pid in self._shims().items() if s not in live})
            time.sleep(0.5)
        for identity in set(looks[0]).intersection(*looks[1:]):
            self._oracle.count("containers that dockerd forgot")
            _end_tree(looks[-1][identity])

    def _shims(self) -> dict[str, int]:
        """The engine's shims that have a process to look after: container to PID."""
        found: dict[str, int] = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_text().split("\0")
                mine = any(word.startswith(f"{self._engine.run_folder}/") for word in words)
                if "containerd-shim" in words[0] and mine and _children(int(path.parent.name)):
                    found[words[words.index("-id") + 1]] = int(path.parent.name)
        return found

    # -- hubs and engine agree ----------------------------------------------------------------

    def agree(self) -> None:
        """Each server that a hub calls ready runs and is reached; each container has its server."""
        self.until_none(self._all_disagreements)

    def _all_disagreements(self) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], str] = {}
        for hub in self._hubs:
            servers, rows = self._servers(hub), self._wire.containers()
            found |= disagreements(servers, rows, hub_id(hub))
            for one in servers:
                if one.ready and (wrong := self._misled(hub, one)):
                    found["wrong route", one.place] = wrong
        return found

    def _misled(self, hub: Hub, server: Server) -> str:
        """What is wrong with the way from the proxy to the server."""
        try:
            answer = hub.user_get(server.user, "env", server.name)
            inside = answer.json()["env"] if answer.ok else {}
        except (requests.RequestException, ValueError) as error:
            return f"{server.place} can't be reached: {error}"
        if inside.get("HOSTNAME") == server.container[:12]:
            return ""
        return (
            f"{server.place} is in {server.container[:12]}; through the proxy there answered "
            f"{answer.status_code} {inside.get('HOSTNAME')}"
        )

    # -- every card can be had ----------------------------------------------------------------

    def stop_all(self) -> None:
        """Every server is stopped; then no container of a hub is left."""
        self.until_none(self._not_stopped)

    def _not_stopped(self) -> dict[tuple[str, str], str]:
        places = [(hub, one) for hub in self._hubs for one in self._servers(hub) if not one.pending]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(_stop, places))
        return {
            ("not removed", row["Id"]): f"container {row['Id'][:12]} is {row['State']} after all "
            "servers were stopped"
            for row in self._wire.containers()
            if _LABEL_HUB in row["Labels"]
        }

    def grant_all(self, users: Sequence[str]) -> None:
        """With nothing running, every card can be given to a server."""
        places = [(self._hubs[n % 2], users[n // 2]) for n in range(len(self._oracle.cards))]

        def still_free() -> dict[tuple[str, str], str]:
            with ThreadPoolExecutor(len(places)) as pool:
                list(pool.map(lambda place: self._ask_for_one(*place), places))
            held = {
                card
                for row in self._wire.containers()
                if row["State"] in _LIVE
                for card in row["Labels"].get("gpuspawner.devices", "").split(",")
            }
            ready = sum(one.ready for hub in self._hubs for one in self._servers(hub))
            free = set(self._oracle.cards) - held
            found = {
                ("leaked card", card): f"{card} can't be had, though nothing holds it"
                for card in free
            }
            if not free and ready < len(places):
                found["never ready", ""] = f"only {ready} of {len(places)} servers got ready"
            return found

        self.until_none(still_free)

    def _ask_for_one(self, hub: Hub, user: str) -> None:
        if hub.server(user) is None:
            answer = hub.start_server(user, {"profile": "one-gpu"}, check=False)
            self._oracle.count(f"asked at the end: {answer.status_code}")

    # -- inside -------------------------------------------------------------------------------

    def _servers(self, hub: Hub) -> list[Server]:
        return read_servers(hub.api("GET", "users", params={"limit": 200}).json())


def _stop(place: tuple[Hub, Server]) -> None:
    hub, one = place
    hub.stop_server(one.user, one.name, check=False)


def hub_id(hub: Hub) -> str:
    """The id that the hub keeps beside its database."""
    return (hub.folder / "gpuspawner_hub_id").read_text().strip()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


def _end_tree(pid: int) -> None:
    for child in _children(pid):
        _end_tree(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
