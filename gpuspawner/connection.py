"""The connection to the container engine: its client, its threads, and what counts as an answer.

A client is made in a thread, never on the event loop, since that asks the engine for its version.
Each kind of call has threads of its own, so that no kind holds up another: a stop must not wait for
creates that the engine sits on, nor a refusal for commands that run inside containers.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import docker
import requests
import urllib3
from docker.errors import DockerException

T = TypeVar("T")

#: What docker-py raises when the engine gave no answer. An ``APIError`` is one of these and is the
#: engine's answer all the same.
NO_ANSWER = (
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    DockerException,
    OSError,
)

#: ``ask``: what is listed, what the engine is; ``inspect``: one container, image or volume;
#: ``start``: create and start; ``end``: stop and remove; ``inside``: commands in containers.
Kind = Literal["ask", "inspect", "start", "end", "inside"]

#: How many times the configured number of threads each kind has. Ends of servers are many at once
#: (a class is over), and one that hangs must hold up no other.
_WIDTHS: dict[Kind, int] = {"ask": 1, "inspect": 1, "start": 1, "end": 4, "inside": 1}
#: How long an order may take before it counts as unanswered. A create copies whole images into new
#: volumes, so this is no measure of health; but a connection may be dead without a sign.
ORDER_SECONDS = 300.0
#: How long the engine may take to tell its version.
VERSION_SECONDS = 10.0

_ORDERS = re.compile(r"/containers/(create$|[^/?]+/(start|stop|kill)$|[^/?]+$)")
#: What an object must have to be an answer, by path.
_OBJECTS = tuple(
    (re.compile(path), fields)
    for path, fields in (
        (r"/containers/create$", ("Id",)),
        (r"/info$", ("ServerVersion",)),
        (r"/containers/[^/]+/json$", ("Id", "Config", "HostConfig", "NetworkSettings", "State")),
        (r"/containers/[^/]+/exec$", ("Id",)),
        (r"/images/.+/json$", ("Id", "Config")),
        (r"/volumes/[^/]+$", ("Name",)),
    )
)
_KINDS: tuple[tuple[str, Kind], ...] = (
    ("create_container", "start"),
    ("start", "start"),
    ("stop", "end"),
    ("kill", "end"),
    ("remove_container", "end"),
    ("inspect_", "inspect"),
    ("port", "inspect"),
)


class NoAnswer(requests.exceptions.RequestException):
    """Something came that is not what an engine answers: a page, half a text. It proves nothing."""


class EngineClient(docker.APIClient):
    """docker-py's client, which stumbles over answers that are no engine's.

    Attributes:
        outdated: the engine speaks another version of its API by now.
    """

    outdated = False
    timeout: Any  # of one question, in seconds

    def _raise_for_status(self, response: requests.Response) -> None:
        """As docker-py's, for errors in the engine's own form.

        Raises:
            docker.errors.APIError: the engine's answer.
            NoAnswer: an error of somebody else, say a proxy, or an engine that was cut off.
        """
        if response.status_code < 400:
            return
        message = _message(response)
        if message is None:
            raise NoAnswer(
                f"HTTP status {response.status_code} without the engine's message from "
                f"{response.url}",
                response=response,
            )
        if response.status_code == 400 and "client version" in message:
            # The engine was upgraded: the next call agrees on a version anew.
            self.outdated = True
        super()._raise_for_status(response)

    def _result(self, response: requests.Response, json: bool = False, binary: bool = False) -> Any:
        try:
            result = super()._result(response, json, binary)
        except RecursionError as error:
            raise NoAnswer(f"an answer nested too deep from {response.url}") from error
        return whole(response, result) if json else result

    def _post(self, url: str, **kwargs: Any) -> Any:
        return self._order(super()._post, url, kwargs)

    def _delete(self, url: str, **kwargs: Any) -> Any:
        return self._order(super()._delete, url, kwargs)

    def _order(self, send: Callable[..., Any], url: str, kwargs: dict[str, Any]) -> Any:
        if not _ORDERS.search(url):
            return send(url, **kwargs)
        kwargs["timeout"] = max(kwargs.get("timeout") or 0, self.timeout, ORDER_SECONDS)
        response = send(url, **kwargs)
        # 201 of a create, 204 of the others, 304 of what is so already.
        if response.status_code == 200:
            raise NoAnswer(f"HTTP status 200 is no answer to an order: {url}", response=response)
        return response

    def _retrieve_server_version(self) -> Any:
        patience = self.timeout
        self.timeout = min(patience, VERSION_SECONDS)
        try:
            return super()._retrieve_server_version()
        finally:
            self.timeout = patience


def _message(response: requests.Response) -> str | None:
    """The engine's own words in an error, None if they are not in its form."""
    try:
        body = response.json()
    except (RecursionError, ValueError):
        return None
    text = body.get("message") if isinstance(body, dict) else None
    return text if isinstance(text, str) else None


def whole(response: requests.Response, body: Any) -> Any:
    """The body of an answer, which has what answers of its kind have.

    Raises:
        NoAnswer: it has not, so it is none of an engine's.
    """
    wanted = _fields(response)
    if wanted and not (isinstance(body, dict) and body.keys() >= set(wanted)):
        raise NoAnswer(f"no {', '.join(wanted)} in an answer from {response.url}")
    return body


def _fields(response: requests.Response) -> tuple[str, ...]:
    """What an answer of this call must have; nothing where that is not known."""
    path = str(response.url).partition("?")[0]
    return next((fields for pattern, fields in _OBJECTS if pattern.search(path)), ())


class Connection:
    """A client and the threads in which it is used.

    Args:
        make_client: builds the client; called in a thread.
        threads: how many calls of each kind may be under way at once.
    """

    def __init__(self, make_client: Callable[[], Any], *, threads: int) -> None:
        self._make_client = make_client
        self._client: Any = None
        self._lock = threading.Lock()
        self._making: Future[Any] | None = None
        self._pools = {
            kind: ThreadPoolExecutor(count * threads, thread_name_prefix=f"gpuspawner-{kind}")
            for kind, count in _WIDTHS.items()
        }

    # -- the client -----------------------------------------------------------------------------

    def client(self) -> Any:
        """The shared client, made now if need be. Blocks: only in a thread.

        Raises:
            NO_ANSWER: the engine did not tell its version. All who wait for it are told at once.
        """
        with self._lock:
            if self._client is not None and not getattr(self._client, "outdated", False):
                return self._client
            making, mine = self._making, self._making is None
            if making is None:
                making = self._making = Future()
        if mine:
            self._make(making)
        return making.result()

    def _make(self, making: Future[Any]) -> None:
        try:
            made = self._make_client()
        except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
            with self._lock:
                self._making = None
            making.set_exception(error if isinstance(error, NO_ANSWER) else _unusable(error))
        else:
            with self._lock:
                self._client, self._making = made, None
            making.set_result(made)

    @property
    def at_hand(self) -> Any:
        """The client that was made last, None if none ever was. Never blocks."""
        return self._client

    # -- the threads ----------------------------------------------------------------------------

    def submit(
        self, kind: Kind, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> Future[T]:
        """Run in a thread of that kind.

        Raises:
            RuntimeError: the process ends and takes no more work.
        """
        return self._pools[kind].submit(function, *args, **kwargs)

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The outcome of a call in a thread. Cancelling the wait does not end the call."""
        return await asyncio.wrap_future(self.submit(kind, function, *args, **kwargs))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """One method of the client, in a thread of its kind."""

        def work() -> Any:
            return getattr(self.client(), method)(*args, **kwargs)

        return self.submit(kind_of(method), work)

    def close(self, *, wait: bool = False) -> None:
        """Let the threads end; calls under way are still finished."""
        for pool in self._pools.values():
            pool.shutdown(wait=wait)


def connections(threads: int) -> int:
    """How many connections a client needs for that many threads of each kind, and some pulls."""
    return (sum(_WIDTHS.values()) + 1) * threads


def kind_of(method: str) -> Kind:
    """The kind of call that a method of the client is."""
    return next((kind for start, kind in _KINDS if method.startswith(start)), "inside")


def _unusable(error: BaseException) -> NoAnswer:
    return NoAnswer(f"no client could be made: {type(error).__name__}: {error}")
