"""A whole container engine in memory: its state, its clock, its faults.

``FakeMachine`` is the host; ``FakeClient`` is what a ``docker.APIClient`` of it would be, with the
part of that class that the product uses. The behaviour it imitates was measured on Docker 20.10
and 28.5; ``tests/test_engine_contract.py`` runs the same tests on it and on real engines.

Time is virtual: ``advance()`` moves the engine's clock, and nothing here sleeps, except for
``jitter``, by which storms mix the order of calls.

Faults, by operation (``list``, ``inspect``, ``create``, ``start``, ``stop``, ``remove``, ``info``,
``archive``, ``pull``):

========== =====================================================================
unreachable connection refused; nothing happens
lost        no answer, and nothing happens
cut         the order is carried out, but its answer is lost
late        no answer now; the order is carried out at ``finish_late()``
500         the engine answers 500 and does nothing
========== =====================================================================
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import formatdate
from fractions import Fraction
from typing import Any, Literal

import requests
from docker.errors import APIError, create_api_error_from_http_exception
from docker.types import HostConfig

Fault = Literal["unreachable", "lost", "cut", "late", "500"]

LIVE = ("running", "paused", "restarting")
CDI_PREFIX = "nvidia.com/gpu="
#: Longest that a test may wait for a gate: a fault in the test, never a measure.
_STUCK_SECONDS = 30.0


@dataclass
class FakeContainer:
    """One container, as the engine keeps it."""

    id: str
    name: str
    created: float
    image: str
    image_id: str
    labels: dict[str, str]
    env: list[str] = field(default_factory=list)
    host_config: dict[str, Any] = field(default_factory=dict)
    state: str = "created"
    error: str = ""
    exit_code: int = 0
    finished_at: float | None = None
    starting: bool = False
    listed: bool = True
    answers: bool = True  # False: listed, but inspect and removal say 404 (it is being created)
    unkillable: bool = False
    start_error: str = ""
    files: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def cards(self) -> frozenset[str]:
        """Ids that the engine was asked to put into it, read from the request, not the labels."""
        return frozenset(
            str(one).removeprefix(CDI_PREFIX)
            for request in self.host_config.get("DeviceRequests") or ()
            for one in request.get("DeviceIDs") or ()
        )

    @property
    def share(self) -> Fraction:
        return Fraction(self.labels.get("gpuspawner.share", "1"))


class Gate:
    """Holds back calls of one operation until opened; counts who has arrived."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()

    def wait_arrived(self) -> None:
        """Block until one more call stands at the gate."""
        assert self._arrived.acquire(timeout=_STUCK_SECONDS), "no call came to the gate"

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self._arrived.release()
        assert self._open.wait(_STUCK_SECONDS), "nobody opened the gate"


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

    def add_image(self, name: str, env: list[str] | None = None, **labels: str) -> str:
        """Give it an image; the id."""
        with self.lock:
            identity = "sha256:" + self._fresh_id("image")
            self.images[name] = {
                "Id": identity,
                "Config": {"Env": env or ["PATH=/bin"], "Labels": labels or None},
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
            made = self._make(image, name, dict(labels or {}), [], host)
            for key, value in fields.items():
                setattr(made, key, value)
            if state in LIVE:
                self._run(made)
            made.state = state
            if state == "exited" and made.finished_at is None:
                made.finished_at = self.now
            return made

    def run(self, container_id: str) -> None:
        """``docker start`` by hand."""
        with self.changed:
            self._run(self.containers[container_id])

    def exit(self, container_id: str) -> None:
        """Its process ends."""
        with self.changed:
            self._end(self.containers[container_id])

    def rm_f(self, container_id: str) -> None:
        """``docker rm -f`` by hand."""
        with self.changed:
            self._drop(self.containers[container_id])

    def commit(self, container_id: str, name: str) -> str:
        """``docker commit``: labels are copied into the new image."""
        with self.lock:
            return self.add_image(name, **self.containers[container_id].labels)

    def restart_engine(self) -> None:
        """An engine restart without live-restore: everything that ran has exited."""
        with self.changed:
            for one in self.containers.values():
                if one.live:
                    self._end(one)

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

    def _make(
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

    def _run(self, one: FakeContainer) -> None:
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

    def _end(self, one: FakeContainer) -> None:
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
        deadline = time.monotonic() + (timeout or _STUCK_SECONDS)
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
                    self._run(one)
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
            return [
                {
                    "Id": c.id,
                    "Names": [f"/{c.name}"],
                    "Image": c.image,
                    "ImageID": c.image_id,
                    "Created": int(c.created),
                    "Labels": dict(c.labels),
                    "State": c.state,
                    "Status": self._status(c),
                }
                for c in sorted(self.containers.values(), key=lambda c: -c.created)
                if c.listed
            ]

    def _status(self, one: FakeContainer) -> str:
        if one.state == "exited" and one.finished_at is not None:
            return f"Exited ({one.exit_code}) {_ago(self.now - one.finished_at)} ago"
        return one.state.capitalize()

    def inspect(self, container_id: str, timeout: float | None = None) -> dict[str, Any]:
        with self.lock:
            one = self.wait_started(container_id, timeout)
            return {
                "Id": one.id,
                "Name": f"/{one.name}",
                "Created": _stamp(one.created),
                "Image": one.image_id,
                "Config": {"Image": one.image, "Labels": dict(one.labels), "Env": list(one.env)},
                "HostConfig": {"Runtime": "runc", **one.host_config},
                "Mounts": [],
                "NetworkSettings": {"IPAddress": "172.17.0.2", "Networks": {}, "Ports": {}},
                "State": {
                    "Status": one.state,
                    "Running": one.live,
                    "Error": one.error,
                    "ExitCode": one.exit_code,
                    "FinishedAt": _stamp(one.finished_at),
                },
            }


class FakeClient:
    """A ``docker.APIClient`` of a FakeMachine."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine

    def _url(self, path: str) -> str:
        return f"http://fake/v1.41{path}"

    def _get(
        self, url: str, params: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> requests.Response:
        path = url.removeprefix("http://fake/v1.41")
        machine = self.machine

        def answer(operation: str, effect: Callable[[], Any], subject: Any = None) -> Any:
            # The client raises only in _raise_for_status, as the real one does.
            try:
                return response(200, machine.call(operation, effect, subject), machine.now)
            except APIError as error:
                return error.response

        result: requests.Response
        if path == "/containers/json":
            assert params == {"all": 1}
            result = answer("list", machine.rows)
        elif path == "/info":
            result = answer("info", lambda: dict(machine.info))
        elif path.startswith("/containers/") and path.endswith("/json"):
            identity = path.split("/")[2]
            result = answer("inspect", lambda: machine.inspect(identity, timeout), identity)
        else:
            raise AssertionError(f"the fake engine has no GET {path}")
        return result

    def _raise_for_status(self, answer: requests.Response) -> None:
        try:
            answer.raise_for_status()
        except requests.exceptions.HTTPError as error:
            raise create_api_error_from_http_exception(error) from error

    def create_host_config(self, **kwargs: Any) -> dict[str, Any]:
        return dict(HostConfig(version="1.41", **kwargs))

    def create_container(
        self,
        image: str,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        host_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        env = [f"{key}={value}" for key, value in (environment or {}).items()]

        def effect() -> dict[str, Any]:
            with self.machine.changed:
                made = self.machine._make(
                    image, name, dict(labels or {}), env, dict(host_config or {})
                )
                return {"Id": made.id, "Warnings": []}

        subject = {"image": image, "name": name, "labels": labels, **kwargs}
        answer: dict[str, Any] = self.machine.call("create", effect, subject)
        return answer

    def start(self, container: str) -> None:
        self.machine.call("start", lambda: self.machine.start(container), container)

    def stop(self, container: str, timeout: float | None = None) -> None:
        def effect() -> None:
            with self.machine.changed:
                one = self.machine.wait_started(container, timeout)
                if one.live:
                    self.machine._end(one)

        self.machine.call("stop", effect, container)

    def remove_container(self, container: str, v: bool = False, force: bool = False) -> None:
        self.machine.call("remove", lambda: self.machine.remove(container, force), container)

    def inspect_container(self, container: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.machine.call(
            "inspect", lambda: self.machine.inspect(container), container
        )
        return answer

    def inspect_image(self, image: str) -> dict[str, Any]:
        with self.machine.lock:
            if image not in self.machine.images:
                raise api_error(404, f"No such image: {image}")
            return dict(self.machine.images[image])

    def put_archive(self, container: str, path: str, data: bytes) -> bool:
        def effect() -> bool:
            with self.machine.lock:
                self.machine.find(container).files.append((path, data))
            return True

        return bool(self.machine.call("archive", effect, container))

    def get_archive(self, container: str, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        with self.machine.lock:
            for stored, data in reversed(self.machine.find(container).files):
                if stored == path:
                    return iter([data]), {"name": path, "size": len(data)}
        raise api_error(404, f"Could not find the file {path} in container {container}")

    def pull(self, repository: str, tag: str | None = None, **kwargs: Any) -> list[Any]:
        name = f"{repository}:{tag}" if tag else repository
        self.machine.call("pull", lambda: self.machine.add_image(name), name)
        return [{"status": f"Downloaded {name}"}]

    def info(self) -> dict[str, Any]:
        return dict(self.machine.call("info", lambda: dict(self.machine.info)))

    def port(self, container: str, private_port: int) -> list[dict[str, str]]:
        with self.machine.lock:
            self.machine.find(container)
        return [{"HostIp": "127.0.0.1", "HostPort": str(private_port)}]


def response(status: int, body: Any, now: float) -> requests.Response:
    """What the engine's HTTP server would send."""
    answer = requests.Response()
    answer.status_code = status
    answer.url = "http://fake/"
    answer._content = json.dumps(body).encode()
    answer.headers["Date"] = formatdate(now, usegmt=True)
    answer.headers["Content-Type"] = "application/json"
    return answer


def api_error(status: int, message: str) -> APIError:
    """The error docker-py makes of an answer with this status."""
    try:
        response(status, {"message": message}, 0).raise_for_status()
    except requests.exceptions.HTTPError as error:
        try:
            create_api_error_from_http_exception(error)
        except APIError as made:
            return made
    raise AssertionError(f"{status} is no error")


def _request(cards: tuple[str, ...]) -> dict[str, Any]:
    return {"Driver": "nvidia", "Count": 0, "DeviceIDs": list(cards), "Capabilities": [["gpu"]]}


def _stamp(moment: float | None) -> str:
    if moment is None:
        return "0001-01-01T00:00:00Z"
    whole = datetime.fromtimestamp(int(moment), timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(moment % 1 * 1e9):09d}Z"


def _ago(seconds: float) -> str:
    """The engine's own words for an age."""
    if seconds < 1:
        return "Less than a second"
    if seconds < 2:
        return "1 second"
    if seconds < 60:
        return f"{int(seconds)} seconds"
    minutes = int(seconds / 60)
    if minutes == 1:
        return "About a minute"
    if minutes < 60:
        return f"{minutes} minutes"
    hours = int(seconds / 3600 + 0.5)
    return "About an hour" if hours == 1 else f"{hours} hours"
