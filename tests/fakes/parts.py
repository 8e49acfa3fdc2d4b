"""Parts of a fake engine: a container, a command in it, and a gate that holds calls back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

LIVE = ("running", "paused", "restarting")
CDI_PREFIX = "nvidia.com/gpu="
#: Longest that a test may wait for a gate: a fault in the test, never a measure.
STUCK_SECONDS = 120.0

#: What a command inside a container answers: its exit code and what it writes.
Answer = tuple[int, bytes]


@dataclass
class FakeContainer:
    """One container, as the engine keeps it.

    Attributes:
        address: on its network while it runs.
        pids: host PIDs of its processes while it runs.
        inside: what a command (``docker exec``) in it answers.
    """

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
    started_at: float | None = None
    finished_at: float | None = None
    starting: bool = False
    listed: bool = True
    answers: bool = True  # False: listed, but inspect and removal say 404 (it is being created)
    unkillable: bool = False
    oom_killed: bool = False
    start_error: str = ""
    address: str = ""
    host_ports: dict[str, int] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    files: list[tuple[str, bytes]] = field(default_factory=list)
    inside: Callable[[list[str]], Answer] = lambda _: (0, b"")

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

    @property
    def network(self) -> str:
        mode = str(self.host_config.get("NetworkMode") or "default")
        return "bridge" if mode == "default" else mode

    @property
    def comes_back(self) -> bool:
        """It has a restart policy by which the engine starts it again."""
        policy = (self.host_config.get("RestartPolicy") or {}).get("Name")
        return policy in ("always", "unless-stopped")


@dataclass
class FakeExec:
    """A command that was prepared in a container."""

    container: str
    command: list[str]
    exit_code: int | None = None


class Gate:
    """Holds back calls of one operation until opened; counts who has arrived."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()

    def wait_arrived(self) -> None:
        """Block until one more call stands at the gate."""
        assert self._arrived.acquire(timeout=STUCK_SECONDS), "no call came to the gate"

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self._arrived.release()
        assert self._open.wait(STUCK_SECONDS), "nobody opened the gate"
