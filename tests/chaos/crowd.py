"""Users who start, cancel, stop and leave at random, over REST and through the proxy."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import requests

from ground.hub import Hub

PROFILES = ["one-gpu"] * 5 + ["two-gpus"] + ["cpu"]
SERVERS = ("", "", "lab")
_ACTIONS = ["start"] * 8 + ["stop"] * 4 + ["cancel"] * 2 + ["leave"] * 2 + ["remove"]


class Person:
    """One user of one hub.

    Args:
        seed: of this person's own choices.
        think_seconds: mean time between two actions.
        count: is told each action with its answer.
    """

    def __init__(
        self,
        hub: Hub,
        user: str,
        seed: str,
        *,
        think_seconds: float,
        ended: threading.Event,
        count: Callable[[str], None],
    ) -> None:
        self._hub, self._user = hub, user
        self._random = random.Random(f"{seed}/{user}")
        self._think_seconds = think_seconds
        self._ended = ended
        self._count = count
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.headers["Authorization"] = f"token {hub.token}"

    def live(self) -> None:
        """Act until the noise has ended."""
        while not self._ended.wait(self._random.expovariate(1 / self._think_seconds)):
            action = self._random.choice(_ACTIONS)
            server = self._random.choice(SERVERS)
            try:
                status = getattr(self, f"_{action}")(server)
            except requests.RequestException:
                status = "no answer"  # the hub was just killed
            self._count(f"{action}: {status}")
        self._http.close()

    def _start(self, server: str) -> int:
        profile = self._random.choice(PROFILES)
        return self._api("POST", server, {"profile": profile})

    def _stop(self, server: str) -> int:
        return self._api("DELETE", server)

    def _cancel(self, server: str) -> int:
        """Start, and think better of it at any point of the way."""
        self._start(server)
        self._ended.wait(self._random.uniform(0, 1.5))
        return self._stop(server)

    def _leave(self, server: str) -> int:
        """Shut the server down from inside."""
        place = f"{self._user}/{server}" if server else self._user
        return self._http.get(f"{self._hub.url}/user/{place}/exit", timeout=60).status_code

    def _remove(self, server: str) -> int:
        """Stop a named server and have the hub forget it."""
        return self._api("DELETE", server, {"remove": True} if server else None)

    def _api(self, method: str, server: str, body: dict[str, Any] | None = None) -> int:
        path = f"servers/{server}" if server else "server"
        url = f"{self._hub.url}/hub/api/users/{self._user}/{path}"
        return self._http.request(method, url, json=body, timeout=120).status_code
