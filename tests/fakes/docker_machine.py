"""A whole container engine in memory: its state, its clock, its faults.

``FakeMachine`` is the host; :mod:`fakes.docker_client` has a client of it. The behaviour it
imitates was measured on Docker 20.10 and 28.5; ``tests/test_engine_contract.py`` runs the same
tests on it and on real engines.

Time is virtual: ``advance()`` moves the engine's clock, and nothing here sleeps, except for
``jitter``, by which storms mix the order of calls.

Faults, by operation (``list``, ``inspect``, ``create``, ``start``, ``stop``, ``remove``, ``info``,
``archive``, ``pull``):

=========== =====================================================================
unreachable connection refused; nothing happens
lost        no answer, and nothing happens
cut         the order is carried out, but its answer is lost
late        no answer now; the order is carried out at ``finish_late()``
500         the engine answers 500 and does nothing
=========== =====================================================================
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Literal

import requests

from .answers import api_error
from .parts import LIVE, STUCK_SECONDS, FakeContainer, Gate
from .views import inspection, list_row

Fault = Literal["unreachable", "lost", "cut", "late", "500"]


class FakeMachine:
    """The engine and what it runs.

    Attributes:
        now: the engine's clock, seconds since the epoch.
        violations: moments at which two running containers together exceeded a card. Written by
            the machine itself, at the start of each container, whoever started it.
        most_running: the most containers with a card that ever ran at once.
        calls: operations in the order in which they arrived.
        jitter: where set, calls take a random fraction of a millisecond before and after.
    """

    def __init__(self, *, now: float = 1_700_000_000.25, seed: int = 0) -> None:
        self.now = now
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.containers: dict[str, FakeContainer] = {}
        self.images: dict[str, dict[str, Any]] = {}
        self.violations: list[str] = []
        self.most_running = 0
        self.calls: list[str] = []
        self.jitter: random.Random | None = None
        self.info: dict[str, Any] = {
            "ServerVersion": "28.5.2",
            "DefaultRuntime": "runc",
            "Runtimes": {"runc": {"path": "runc"}},
            "DiscoveredDevices": [],
        }
        self._seed = seed
        self._count = 0
        self._faults: list[tuple[str, Fault, int, Callable[[Any], bool] | None]] = []
        self._late: list[Callable[[], Any]] = []
        self._gates: dict[tuple[str, str], Gate] = {}
        self.add_image("img")

    # -- what a test does to it -----------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        with self.changed:
            self.now += seconds
            self.changed.notify_all()

    def fault(
        self,
        operation: str,
        kind: Fault,
        times: int = 1,
        when: Callable[[Any], bool] | None = None,
    ) -> None:
        """Let the next ``times`` calls fail (-1: until :meth:`heal`); ``*`` is every operation.

        Args:
            when: decides by the call's subject (container id; for a create its keyword arguments).
        """
        with self.lock:
            self._faults.append((operation, kind, times, when))

    def heal(self) -> None:
        with self.lock:
            self._faults.clear()

    def finish_late(self) -> None:
        """Carry out the orders whose clients have gone."""
        with self.lock:
            late, self._late = self._late, []
        for effect in late:
            effect()

    @contextmanager
    def gate(self, operation: str, at: Literal["before", "inside", "after"]) -> Iterator[Gate]:
        """Hold calls before or after their effect; ``inside`` is for start only."""
        gate = Gate()
        with self.lock:
            self._gates[operation, at] = gate
        try:
            yield gate
        finally:
            with self.lock:
                self._gates.pop((operation, at), None)
            gate.open()

    def add_image(
        self,
        name: str,
        env: list[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Give it an image; the id."""
        with self.lock:
            identity = "sha256:" + self._fresh_id("image")
            self.images[name] = {
                "Id": identity,
                "Config": {"Env": env or ["PATH=/bin"], "Labels": dict(labels or {}) or None},
            }
            return identity

    def add(
        self,
        *,
        cards: tuple[str, ...] = (),
        state: str = "created",
        name: str = "",
        image: str = "img",
        labels: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> FakeContainer:
        """A container that somebody made past every fault and gate (``docker run`` by hand)."""
        host = dict(fields.pop("host_config", {}))
        if cards:
            host.setdefault("DeviceRequests", [_request(cards)])
        with self.changed:
            made = self.make(image, name, dict(labels or {}), [], host)
            for key, value in fields.items():
                setattr(made, key, value)
            if state in LIVE:
                self.set_running(made)
            made.state = state
            if state == "exited" and made.finished_at is None:
                made.finished_at = self.now
            return made

    def run(self, container_id: str) -> None:
        """``docker start`` by hand."""
        with self.changed:
            self.set_running(self.containers[container_id])

    def exit(self, container_id: str) -> None:
        """Its process ends."""
        with self.changed:
            self.end(self.containers[container_id])

    def rm_f(self, container_id: str) -> None:
        """``docker rm -f`` by hand."""
        with self.changed:
            self._drop(self.containers[container_id])

    def commit(self, container_id: str, name: str) -> str:
        """``docker commit``: labels are copied into the new image."""
        with self.lock:
            return self.add_image(name, labels=self.containers[container_id].labels)

    def restart_engine(self) -> None:
        """An engine restart without live-restore: everything that ran has exited."""
        with self.changed:
            for one in self.containers.values():
                if one.live:
                    self.end(one)

    # -- what a test reads ----------------------------------------------------------------------

    def live(self, hub_id: str = "") -> list[FakeContainer]:
        with self.lock:
            return [
                c
                for c in self.containers.values()
                if c.live and (not hub_id or c.labels.get("gpuspawner.hub") == hub_id)
            ]

    def load(self) -> dict[str, Fraction]:
        """What runs on each card, as a sum of shares."""
        load: dict[str, Fraction] = {}
        with self.lock:
            for one in self.containers.values():
                if one.live:
                    for card in one.cards:
                        load[card] = load.get(card, Fraction(0)) + one.share
        return load

    # -- the inside ------------------------------------------------------------------------------

    def _fresh_id(self, what: str) -> str:
        self._count += 1
        return hashlib.sha256(f"{self._seed} {what} {self._count}".encode()).hexdigest()

    def make(
        self, image: str, name: str, labels: dict[str, str], env: list[str], host: dict[str, Any]
    ) -> FakeContainer:
        known = self.images.get(image)
        if known is None:
            raise api_error(404, f"No such image: {image}")
        if name and not re.fullmatch("[a-zA-Z0-9][a-zA-Z0-9_.-]+", name):
            raise api_error(400, f"Invalid container name ({name})")
        if name and any(c.name == name for c in self.containers.values()):
            raise api_error(409, f'Conflict. The container name "/{name}" is already in use')
        made = FakeContainer(
            id=self._fresh_id("container"),
            name=name,
            created=self.now,
            image=image,
            image_id=str(known["Id"]),
            labels={**(known["Config"]["Labels"] or {}), **labels},
            env=[*known["Config"]["Env"], *env],
            host_config=host,
        )
        made.name = name or f"eager_{made.id[:8]}"
        self.containers[made.id] = made
        self.changed.notify_all()
        return made

    def set_running(self, one: FakeContainer) -> None:
        one.state = "running"
        load = self.load()
        for card in one.cards:
            if load[card] > 1:
                holders = [c.name for c in self.containers.values() if c.live and card in c.cards]
                self.violations.append(f"{card}: {', '.join(holders)}")
        self.most_running = max(
            self.most_running, sum(1 for c in self.containers.values() if c.live and c.cards)
        )
        self.changed.notify_all()

    def end(self, one: FakeContainer) -> None:
        one.state, one.finished_at = "exited", self.now
        self.changed.notify_all()

    def _drop(self, one: FakeContainer) -> None:
        self.containers.pop(one.id, None)
        self.changed.notify_all()

    def _take_fault(self, operation: str, subject: Any) -> Fault | None:
        with self.lock:
            for place, (wanted, kind, times, when) in enumerate(self._faults):
                if wanted not in (operation, "*") or (when is not None and not when(subject)):
                    continue
                if times > 0:
                    self._faults[place] = (wanted, kind, times - 1, when)
                    if times == 1:
                        del self._faults[place]
                return kind
        return None

    def _pass_gate(self, operation: str, at: str) -> None:
        with self.lock:
            gate = self._gates.get((operation, at))
        if gate is not None:
            gate.pass_through()

    def _wobble(self) -> None:
        if self.jitter is not None:
            with self.lock:
                pause = self.jitter.random() * 0.001
            time.sleep(pause)

    def call(self, operation: str, effect: Callable[[], Any], subject: Any = None) -> Any:
        """Carry out one order of a client, with whatever fault is due."""
        with self.lock:
            self.calls.append(operation)
        self._pass_gate(operation, "before")
        self._wobble()
        fault = self._take_fault(operation, subject)
        if fault == "unreachable":
            raise requests.exceptions.ConnectionError("connection refused")
        if fault == "lost":
            raise requests.exceptions.ReadTimeout("no answer")
        if fault == "500":
            raise api_error(500, "the engine is unwell")
        if fault == "late":
            with self.lock:
                self._late.append(effect)
            raise requests.exceptions.ReadTimeout("no answer in time")
        answer = effect()
        self._wobble()
        self._pass_gate(operation, "after")
        if fault == "cut":
            raise requests.exceptions.ConnectionError("connection reset")
        return answer

    def find(self, container_id: str) -> FakeContainer:
        one = self.containers.get(container_id)
        if one is None or not one.answers:
            raise api_error(404, f"No such container: {container_id}")
        return one

    def wait_started(self, container_id: str, timeout: float | None) -> FakeContainer:
        """Inspect, stop, kill and remove block while a start is inside."""
        one = self.find(container_id)
        deadline = time.monotonic() + (timeout or STUCK_SECONDS)
        while one.starting:
            if not self.changed.wait(deadline - time.monotonic()):
                raise requests.exceptions.ReadTimeout("no answer in time")
        return self.find(container_id)

    def start(self, container_id: str) -> None:
        with self.changed:
            one = self.wait_started(container_id, None)
            if one.live:
                return
            if one.state not in ("created", "exited"):
                raise api_error(409, "container is marked for removal and cannot be started")
            one.starting = True
        try:
            self._pass_gate("start", "inside")
        finally:
            with self.changed:
                one.starting = False
                self.changed.notify_all()
                if not one.start_error:
                    self.set_running(one)
        if one.start_error:
            one.error, one.exit_code = one.start_error, 128
            raise api_error(500, one.start_error)

    def remove(self, container_id: str, force: bool) -> None:
        with self.changed:
            one = self.wait_started(container_id, None)
            if one.state == "removing":
                raise api_error(409, f"removal of container {one.id} is already in progress")
            if one.live and not force:
                raise api_error(
                    409,
                    f"You cannot remove a {one.state} container {one.id}. "
                    "Stop the container before attempting removal or force remove",
                )
            if one.live and one.unkillable:
                raise api_error(500, "Could not kill running container, cannot remove")
            self._drop(one)

    def rows(self) -> list[dict[str, Any]]:
        with self.lock:
            newest_first = sorted(self.containers.values(), key=lambda c: -c.created)
            return [list_row(c, self.now) for c in newest_first if c.listed]

    def inspect(self, container_id: str, timeout: float | None = None) -> dict[str, Any]:
        with self.lock:
            return inspection(self.wait_started(container_id, timeout))


def _request(cards: tuple[str, ...]) -> dict[str, Any]:
    return {"Driver": "nvidia", "Count": 0, "DeviceIDs": list(cards), "Capabilities": [["gpu"]]}
