"""Parts of a fake engine: a container, and a gate that holds calls back."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

LIVE = ("running", "paused", "restarting")
CDI_PREFIX = "nvidia.com/gpu="
#: Longest that a test may wait for a gate: a fault in the test, never a measure.
STUCK_SECONDS = 30.0


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
        assert self._arrived.acquire(timeout=STUCK_SECONDS), "no call came to the gate"

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self._arrived.release()
        assert self._open.wait(STUCK_SECONDS), "nobody opened the gate"
