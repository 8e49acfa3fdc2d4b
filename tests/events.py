"""An oracle on the engine's events: what ever ran beside what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import docker

from ground.engine import Engine


class Overlaps:
    """Reads starts and ends of containers with our labels from the engine.

    Args:
        keys: of a container's labels (and its ``image`` and ``name``): what it must have for
            itself while it runs.

    Attributes:
        found: keys that two running containers ever had at once.
        deaths: ids of the containers that ended.
    """

    def __init__(
        self, engine: Engine, keys: Callable[[Mapping[str, str]], Iterable[object]]
    ) -> None:
        self.found: list[object] = []
        self.deaths: set[str] = set()
        self._keys = keys
        self._running: dict[object, set[str]] = {}
        self._client = docker.APIClient(base_url=engine.url)
        self._events: Any = self._client.events(
            filters={"type": "container", "event": ["start", "die"], "label": "gpuspawner.lease"},
            decode=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for event in self._events:
            one, died = event["id"], event["Action"] == "die"
            if died:
                self.deaths.add(one)
            for key in self._keys(event["Actor"]["Attributes"]):
                running = self._running.setdefault(key, set())
                if died:
                    running.discard(one)
                    continue
                running.add(one)
                if len(running) > 1:
                    self.found.append(key)

    def close(self) -> None:
        """Read no more."""
        self._events.close()
        self._thread.join()
        self._client.close()
