"""A whole container engine in memory: its state, its clock, its faults.

``FakeMachine`` is the host; :mod:`fakes.docker_client` has a client of it, and
:mod:`fakes.docker_server` serves it to other processes. The behaviour it imitates was measured on
Docker 20.10 and 28.5; ``tests/test_engine_contract.py`` runs the same tests on it and on real
engines.

Time is virtual: ``advance()`` moves the engine's clock, and nothing here sleeps, except for
``jitter``, by which storms mix the order of calls. Faults are in :mod:`fakes.trouble`.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import requests

from .answers import api_error
from .parts import LIVE, STUCK_SECONDS, FakeContainer, FakeExec
from .trouble import Trouble
from .views import inspection, list_row


class FakeMachine(Trouble):
    """The engine and what it runs.

    Attributes:
        now: the engine's clock, seconds since the epoch.
        steady: seconds on a clock that nobody sets.
        violations: moments at which two running containers together exceeded a card. Written by
            the machine itself, at the start of each container, whoever started it.
        most_running: the most containers with a card that ever ran at once.
        volumes: the named volumes there are.
    """

    def __init__(self, *, now: float = 1_700_000_000.25, seed: int = 0) -> None:
        super().__init__()
        self.now = now
        self.steady = 0.0
        self.containers: dict[str, FakeContainer] = {}
        self.execs: dict[str, FakeExec] = {}
        self.images: dict[str, dict[str, Any]] = {}
        self.volumes: set[str] = set()
        self.violations: list[str] = []
        self.most_running = 0
        self.info: dict[str, Any] = {
            "ServerVersion": "28.5.2",
            "DefaultRuntime": "runc",
            "Runtimes": {"runc": {"path": "runc"}},
            "DiscoveredDevices": [],
        }
        self._seed = seed
        self._count = 0
        self.add_image("img")

    # -- what a test does to it -----------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        with self.changed:
            self.now += seconds
            self.steady += seconds
            self.changed.notify_all()

    def set_clock(self, seconds: float) -> None:
        """Somebody sets the host's clock, forward or back."""
        with self.lock:
            self.now += seconds

    def add_image(
        self,
        name: str,
        env: list[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Give it an image; the id."""
        with self.lock:
            identity = "sha256:" + self.fresh_id("image")
            self.images[name] = {
                "Id": identity,
                "Config": {
                    "Cmd": ["jupyterhub-singleuser"],
                    "Env": env or ["PATH=/bin"],
                    "Labels": dict(labels or {}) or None,
                },
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

    def exit(self, container_id: str, *, oom_killed: bool = False) -> None:
        """Its process ends."""
        with self.changed:
            one = self.containers[container_id]
            self.end(one)
            if oom_killed:
                one.oom_killed, one.exit_code = True, 137

    def rm_f(self, container_id: str) -> None:
        """``docker rm -f`` by hand."""
        with self.changed:
            self.drop(self.containers[container_id])

    def commit(self, container_id: str, name: str) -> str:
        """``docker commit``: labels are copied into the new image."""
        with self.lock:
            return self.add_image(name, labels=self.containers[container_id].labels)

    def restart_engine(self, *, live_restore: bool = False) -> None:
        """The engine is started again, as after a reboot.

        Without live-restore everything that ran has ended; what has a restart policy runs again,
        and what was to be removed at its end is gone.
        """
        if live_restore:
            return
        with self.changed:
            ran = [one for one in self.containers.values() if one.live]
            for one in ran:
                self.end(one)
                one.exit_code = 137
                if one.host_config.get("AutoRemove"):
                    self.drop(one)
                elif one.comes_back:
                    self.set_running(one)

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

    # -- the inside: called with the lock held ----------------------------------------------------

    def fresh_id(self, what: str) -> str:
        self._count += 1
        return hashlib.sha256(f"{self._seed} {what} {self._count}".encode()).hexdigest()

    def make(
        self, image: str, name: str, labels: dict[str, str], env: list[str], host: dict[str, Any]
    ) -> FakeContainer:
        known = self.images.get(image)
        if known is None:
            raise api_error(404, f"No such image: {image}")
        self.check_name(name)
        made = FakeContainer(
            id=self.fresh_id("container"),
            name=name,
            created=self.now,
            image=image,
            image_id=str(known["Id"]),
            labels={**(known["Config"]["Labels"] or {}), **labels},
            env=[*known["Config"]["Env"], *env],
            host_config=host,
        )
        made.name = name or f"eager_{made.id[:8]}"
        for bind in host.get("Binds") or ():
            source = str(bind).split(":")[0]
            if source and not source.startswith("/"):
                self.volumes.add(source)
        self.containers[made.id] = made
        self.changed.notify_all()
        return made

    def check_name(self, name: str) -> None:
        if name and not re.fullmatch("[a-zA-Z0-9][a-zA-Z0-9_.-]+", name):
            raise api_error(400, f"Invalid container name ({name})")
        if name and any(c.name == name for c in self.containers.values()):
            raise api_error(409, f'Conflict. The container name "/{name}" is already in use')

    def set_running(self, one: FakeContainer) -> None:
        one.state, one.started_at = "running", self.now
        taken = {c.address for c in self.containers.values()}
        one.address = next(a for a in _addresses() if a not in taken)
        self._count += 1
        one.pids = (self._count,)
        for port in one.host_config.get("PortBindings") or ():
            one.host_ports[port] = 32768 + self._count
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
        one.address, one.pids, one.host_ports = "", (), {}
        self.changed.notify_all()

    def drop(self, one: FakeContainer) -> None:
        self.containers.pop(one.id, None)
        self.changed.notify_all()

    def find(self, container_id: str) -> FakeContainer:
        one = self.containers.get(container_id) or next(
            (c for c in self.containers.values() if c.name == container_id), None
        )
        if one is None or not one.answers:
            raise api_error(404, f"No such container: {container_id}")
        return one

    def find_live(self, container_id: str) -> FakeContainer:
        one = self.find(container_id)
        if not one.live:
            raise api_error(409, f"Container {one.id} is not running")
        return one

    def wait_started(self, container_id: str, timeout: float | None) -> FakeContainer:
        """Inspect, stop, kill and remove block while a start is inside."""
        one = self.find(container_id)
        deadline = time.monotonic() + min(timeout or STUCK_SECONDS, STUCK_SECONDS)
        while one.starting:
            if not self.changed.wait(deadline - time.monotonic()):
                raise requests.exceptions.ReadTimeout("no answer in time")
        return self.find(container_id)

    # -- orders and questions ---------------------------------------------------------------------

    def start(self, container_id: str) -> None:
        with self.changed:
            one = self.wait_started(container_id, None)
            if one.live:
                return
            if one.state not in ("created", "exited"):
                raise api_error(409, "container is marked for removal and cannot be started")
            one.starting = True
        self._start_inside(one, "start")
        if one.start_error:
            one.error, one.exit_code = one.start_error, 128
            raise api_error(500, one.start_error)

    def restart(self, container_id: str) -> None:
        """``docker restart``: listed as exited until it runs again."""
        with self.changed:
            one = self.wait_started(container_id, None)
            if one.live:
                self.end(one)
            one.starting = True
        self._start_inside(one, "restart")

    def _start_inside(self, one: FakeContainer, operation: str) -> None:
        """A start that is under way: its end is awaited by all but the list."""
        try:
            self.pass_gate(operation, "inside", one.id)
        finally:
            with self.changed:
                one.starting = False
                self.changed.notify_all()
                if not one.start_error:
                    self.set_running(one)

    def stop(self, container_id: str, timeout: float | None) -> None:
        with self.changed:
            one = self.wait_started(container_id, timeout)
            if one.live:
                self.end(one)

    def kill(self, container_id: str) -> None:
        with self.changed:
            self.wait_started(container_id, None)
            one = self.find_live(container_id)
            self.end(one)
            one.exit_code = 137

    def pause(self, container_id: str, *, paused: bool) -> None:
        with self.changed:
            one = self.find_live(container_id)
            if (one.state == "paused") is paused:
                raise api_error(409, f"Container {one.id} is {'' if paused else 'not '}paused")
            one.state = "paused" if paused else "running"

    def rename(self, container_id: str, name: str) -> None:
        with self.changed:
            one = self.find(container_id)
            self.check_name(name)
            one.name = name

    def update(self, container_id: str, changes: Mapping[str, Any]) -> None:
        with self.changed:
            self.find(container_id).host_config.update(changes)

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
            self.drop(one)

    def rows(self) -> list[dict[str, Any]]:
        with self.lock:
            newest_first = sorted(self.containers.values(), key=lambda c: -c.created)
            return [list_row(c, self.now) for c in newest_first if c.listed]

    def inspect(self, container_id: str, timeout: float | None = None) -> dict[str, Any]:
        with self.lock:
            return inspection(self.wait_started(container_id, timeout))


def _addresses() -> Iterator[str]:
    return (f"172.17.{number // 256}.{number % 256}" for number in range(2, 65534))


def _request(cards: tuple[str, ...]) -> dict[str, Any]:
    return {"Driver": "nvidia", "Count": 0, "DeviceIDs": list(cards), "Capabilities": [["gpu"]]}
