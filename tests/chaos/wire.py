"""The engine over a connection of our own: plain HTTP on its socket, nothing of docker-py or ours.

What the oracle knows must not come through the code that it judges.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode


class Silent(Exception):
    """The engine gave no answer: it is down, frozen or just being killed."""


class Refused(Exception):
    """The engine answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text.strip()}")
        self.status = status


class Wire:
    """Questions and orders to the engine behind a socket, each on a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(
        self,
        method: str,
        target: str,
        *,
        body: Mapping[str, Any] | None = None,
        timeout_seconds: float = 30,
        **query: str | int,
    ) -> Any:
        """One call; what the answer's JSON says, None for an answer without.

        Raises:
            Silent: no answer.
            Refused: an error for an answer.
        """
        headers = {"Host": "docker", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        with closing(_Connection(self._path, timeout_seconds)) as connection:
            try:
                connection.request(method, _url(target, query), data, headers)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise Silent(str(error)) from error
        if answer.status >= 400:
            raise Refused(answer.status, text.decode(errors="replace"))
        return json.loads(text) if text else None

    def containers(self) -> list[dict[str, Any]]:
        """Every container that is listed, whatever its state."""
        rows: list[dict[str, Any]] = self.ask("GET", "/containers/json", all=1)
        return rows

    def inspect(self, container: str) -> dict[str, Any] | None:
        """One container's inspection; None where there is none."""
        try:
            found: dict[str, Any] = self.ask("GET", f"/containers/{container}/json")
        except Refused as error:
            if error.status == 404:
                return None
            raise
        return found

    def events(
        self, since_nanoseconds: int, opened: Callable[[socket.socket], None]
    ) -> Iterator[dict[str, Any]]:
        """Events of containers until the engine ends or the socket is shut down.

        Args:
            opened: is given the socket, to shut it down from elsewhere.
        """
        since = f"{since_nanoseconds // 10**9}.{since_nanoseconds % 10**9:09}"
        query = {"since": since, "filters": json.dumps({"type": ["container"]})}
        with closing(_Connection(self._path, None)) as connection:
            try:
                connection.connect()
                opened(connection.sock)
                connection.request("GET", _url("/events", query), headers={"Host": "docker"})
                answer = connection.getresponse()
                while line := answer.readline():
                    yield json.loads(line)
            except (OSError, http.client.HTTPException, ValueError):
                return


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_seconds: float | None) -> None:
        super().__init__("docker", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _url(target: str, query: Mapping[str, str | int]) -> str:
    return f"{target}?{urlencode(query)}" if query else target
