"""Pulls of images: one per image at a time, each in a thread that nothing else needs.

A registry that does not answer holds a pull for minutes. In the engine's own threads a handful of
those would keep every other server from starting and stopping, and the hub from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from docker.errors import StreamParseError

from .connection import NoAnswer


class PullError(Exception):
    """The engine began to pull an image and failed; the text is the engine's."""


class Pulls:
    """The pulls under way.

    Args:
        client: gives the ``docker.APIClient``; called in a thread.
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], Future[None]] = {}

    async def pull(self, repository: str, tag: str) -> None:
        """Pull an image, or wait for the pull of it that is under way.

        Cancelling the wait ends no pull: the next one to ask finds it further on.

        Raises:
            PullError, docker.errors.APIError: the engine refused.
            requests.RequestException: no answer.
        """
        key = (repository, tag)
        with self._lock:
            pull = self._running.get(key)
            if pull is None:
                pull = self._running[key] = Future()
                # From here on a waiter's cancel can't cancel it for the others.
                pull.set_running_or_notify_cancel()
                # Daemon: the interpreter must not wait for a registry at the hub's exit.
                threading.Thread(
                    target=self._run, args=(key, pull), name=f"pull {key}", daemon=True
                ).start()
        await asyncio.wrap_future(pull)

    def _run(self, key: tuple[str, str], pull: Future[None]) -> None:
        try:
            self._pull(*key)
        except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
            self._forget(key)
            pull.set_exception(error)
        else:
            self._forget(key)
            pull.set_result(None)

    def _pull(self, repository: str, tag: str) -> None:
        try:
            # What fails after the first byte is told inside the stream of a 200.
            for event in self._client().pull(repository, tag, stream=True, decode=True):
                if not isinstance(event, dict):
                    raise NoAnswer(f"{event!r:.40} in the progress of a pull")
                if "error" in event:
                    raise PullError(str(event["error"]))
        except StreamParseError as error:
            raise NoAnswer(f"the progress of a pull can't be read: {error}") from error

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            del self._running[key]
