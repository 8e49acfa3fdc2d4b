"""The container engine, asked from threads of our own.

DockerSpawner's one thread makes a pull block every stop; this edge has several, and a connection
for each. It answers two questions (what is listed, with the inspections that claims need; what the
engine is) and carries out three orders (see :mod:`gpuspawner.calls` for create and start, which
must be followed to their end even if nobody waits for them any more).

Only an HTTP answer counts as one: a cancelled, timed-out or reset call proves nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, TypeVar

import docker
import requests
from docker.errors import APIError

from .answers import EngineInfo, read_date, read_info, read_row, read_time
from .asks import Asks, EngineFacts, parse_asks
from .claims import Detail, Listing, Row, Survey, needs_detail
from .errors import EngineUnknown
from .pulls import Pulls
from .sightings import Sightings

T = TypeVar("T")

#: What docker-py raises when no HTTP answer came.
NO_ANSWER = (requests.exceptions.RequestException, docker.errors.DockerException, OSError)

Removal = Literal["gone", "removing", "runs"]


class Engine:
    """One engine.

    Args:
        make_client: builds a ``docker.APIClient``; called once, in a thread, since it may ask the
            engine for its version.
        threads: how many orders may be under way at once, and as many questions.
        observers: image repositories whose containers only monitor.
        inspect_timeout_seconds: an inspection that takes longer tells that the container is
            starting; the row then counts as unknown.
        unknown_retry_seconds: for how long unknown rows are asked for again.
        clock: tells seconds, and is never set.
    """

    def __init__(
        self,
        make_client: Callable[[], Any],
        *,
        threads: int = 12,
        observers: Collection[str] = (),
        own_ids: Collection[str] = (),
        inspect_timeout_seconds: float = 2.0,
        unknown_retry_seconds: float = 3.0,
        list_timeout_seconds: float = 10.0,
        info_max_age_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_client = make_client
        self._client: Any = None
        self._client_lock = threading.Lock()
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="gpuspawner-engine")
        # Questions have threads of their own: slow creates and pulls must not hold up a refusal.
        self._asking = ThreadPoolExecutor(threads, thread_name_prefix="gpuspawner-ask")
        self.pulls = Pulls(lambda: self.client)
        self.observers = tuple(observers)
        self.own_ids = tuple(own_ids)
        self._inspect_timeout_seconds = inspect_timeout_seconds
        self._unknown_retry_seconds = unknown_retry_seconds
        self._list_timeout_seconds = list_timeout_seconds
        self._info_max_age_seconds = info_max_age_seconds
        self._clock = clock
        self.sightings = Sightings()
        self._asks: dict[str, Asks] = {}
        self._info: EngineInfo | None = None
        self._info_at = 0.0
        self._current: asyncio.Future[Survey] | None = None
        self._next: asyncio.Future[Survey] | None = None

    # -- connection -----------------------------------------------------------------------------

    @property
    def client(self) -> Any:
        """The shared ``docker.APIClient``; the first use may block, so do it in a thread."""
        with self._client_lock:
            if self._client is None:
                self._client = self._make_client()
            return self._client

    def submit(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        return self.executor.submit(function, *args, **kwargs)

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run in a thread. Cancelling the wait does not end the call."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    async def _ask(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, function, *args)

    async def connect(self) -> None:
        """Make the client, off the event loop.

        Raises:
            EngineUnknown: the engine can't be reached.
        """
        if self._client is None:
            try:
                await self.run(lambda: self.client)
            except NO_ANSWER as error:
                raise _unreachable(error) from error

    async def info(self) -> EngineInfo:
        """What the engine is; kept for ``info_max_age_seconds``.

        Raises:
            EngineUnknown: no usable answer.
        """
        now = asyncio.get_running_loop().time()
        if self._info is None or now - self._info_at > self._info_max_age_seconds:
            try:
                answer = await self._ask(self._get_json, "/info", self._list_timeout_seconds)
            except NO_ANSWER as error:
                raise _unreachable(error) from error
            self._info, self._info_at = read_info(answer), now
        return self._info

    # -- what is listed -------------------------------------------------------------------------

    async def survey(self) -> Survey:
        """List all containers, with the inspections that claims need.

        The listing begins after this call, so it shows whatever was answered before. Callers that
        come while one is under way share the next one.

        Raises:
            EngineUnknown: no usable answer, or a container that could not be inspected for
                ``unknown_retry_seconds``. Unknown is busy: the caller gives nothing out.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._survey_after(self._current))
            # If every caller was cancelled meanwhile, nobody collects an error: that is fine.
            self._next.add_done_callback(lambda f: f.cancelled() or f.exception())
        return await asyncio.shield(self._next)

    async def _survey_after(self, current: asyncio.Future[Survey] | None) -> Survey:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        info = await self.info()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._unknown_retry_seconds
        while True:
            listing = await self.listing()
            details, unknown = await self._details(listing, info.facts)
            if not unknown:
                return Survey(listing, details)
            if loop.time() >= deadline:
                raise EngineUnknown(
                    "container(s) "
                    + ", ".join(r.id[:12] for r in unknown)
                    + " are listed but could not be inspected; until they can, what they hold is "
                    "unknown and no GPU is given out. They may be starting; if this lasts, look "
                    "at the engine's log."
                )
            await asyncio.sleep(0.05)

    async def listing(self) -> Listing:
        """List all containers, without inspections.

        Raises:
            EngineUnknown: no usable answer.
        """
        begun = self._clock()
        try:
            rows, at = await self._ask(self._list)
        except (*NO_ANSWER, KeyError, TypeError, ValueError) as error:
            # The latter three: an answer, but not a container list. Unknown is busy.
            raise _unreachable(error) from error
        return self.sightings.listing(rows, at, begun=begun, now=self._clock())

    def _list(self) -> tuple[tuple[Row, ...], float]:
        response = self.get(
            "/containers/json", params={"all": 1}, timeout=self._list_timeout_seconds
        )
        rows = tuple(read_row(item) for item in response.json())
        return rows, read_date(response.headers["Date"])

    def _get_json(self, path: str, timeout_seconds: float) -> Any:
        return self.get(path, timeout=timeout_seconds).json()

    def get(self, path: str, **kwargs: Any) -> Any:
        """GET of the engine's API in the calling thread, with ``requests``' own arguments.

        docker-py has no public call that shows an answer's headers or takes a timeout.

        Raises:
            docker.errors.APIError: the engine answered with an error.
        """
        client = self.client
        return self._checked(client, client._get(client._url(path), **kwargs))

    def post(self, path: str, body: Mapping[str, Any], **kwargs: Any) -> Any:
        """POST, as :meth:`get`."""
        client = self.client
        return self._checked(client, client._post_json(client._url(path), data=body, **kwargs))

    def _checked(self, client: Any, response: Any) -> Any:
        try:
            client._raise_for_status(response)
        except APIError as error:
            if error.status_code == 400 and "client version" in str(error.explanation):
                # The engine was upgraded: the next call agrees on a version anew.
                self._forget(client)
            raise
        return response

    def _forget(self, client: Any) -> None:
        with self._client_lock:
            if self._client is client:
                self._client = None

    async def inspect(self, container_id: str) -> Mapping[str, Any] | None:
        """Inspect by id; None where the engine answers 404.

        Raises:
            EngineUnknown: no usable answer.
        """
        try:
            answer: Mapping[str, Any] = await self._ask(
                self._get_json, f"/containers/{container_id}/json", self._list_timeout_seconds
            )
        except APIError as error:
            if error.status_code == 404:
                return None
            raise _unreachable(error) from error
        except NO_ANSWER as error:
            raise _unreachable(error) from error
        return answer

    async def _details(
        self, listing: Listing, facts: EngineFacts
    ) -> tuple[dict[str, Detail], list[Row]]:
        wanted = [r for r in listing.rows if needs_detail(r)]
        listed = {r.id for r in wanted}
        for gone in self._asks.keys() - listed:
            del self._asks[gone]
        details: dict[str, Detail] = {}
        ask: list[Row] = []
        for row in wanted:
            known = self._known(row)
            if known is None:
                ask.append(row)
            else:
                details[row.id] = known
        unknown = []
        answers = await asyncio.gather(*(self._ask(self._inspect_detail, r, facts) for r in ask))
        for row, detail in zip(ask, answers, strict=True):
            if detail is None:
                unknown.append(row)
            else:
                finished_at = self.sightings.finished(row, detail.finished_at, listing)
                details[row.id] = replace(detail, finished_at=finished_at)
        return details, unknown

    def _known(self, row: Row) -> Detail | None:
        """The cached detail, where nothing that can change matters."""
        asks = self._asks.get(row.id)
        if row.ours or asks is None:
            return None
        if asks.manner == "holds" and row.state in ("created", "exited"):
            # Asked each time: while a start is inside, only the silence of the inspection tells.
            return None
        return Detail(asks)

    def _inspect_detail(self, row: Row, facts: EngineFacts) -> Detail | None:
        """One inspection, in a thread; None where it gave no answer that fits the listing."""
        try:
            answer = self._get_json(f"/containers/{row.id}/json", self._inspect_timeout_seconds)
        except APIError as error:
            return Detail(missing=True) if error.status_code == 404 else None
        except NO_ANSWER:
            return None
        try:
            asks = Asks() if row.ours else parse_asks(answer, facts, self.observers, self.own_ids)
            state = answer.get("State") or {}
            finished_at = read_time(state.get("FinishedAt"))
        except (AttributeError, KeyError, TypeError, ValueError):
            return None  # an answer, but not an inspection as engines give it: unknown is busy
        if state.get("Running") and row.state in ("created", "exited"):
            return None  # it has started since it was listed
        self._asks[row.id] = asks
        return Detail(asks=asks, error=str(state.get("Error") or ""), finished_at=finished_at)

    # -- removal --------------------------------------------------------------------------------

    def remove_now(self, container_id: str, *, force: bool) -> Removal:
        """Remove a container and its anonymous volumes, in the calling thread.

        Without force a running container stays, and the answer is ``runs``.

        Raises:
            docker.errors.APIError: any other answer; the container stays.
            requests.RequestException: no answer.
        """
        try:
            self.client.remove_container(container_id, v=True, force=force)
        except APIError as error:
            if error.status_code == 404:
                return "gone"
            if error.status_code == 409:
                # DockerSpawner takes any 409 for the first; "is running" is one too.
                text = str(error.explanation or "").lower()
                return "removing" if "already in progress" in text else "runs"
            raise
        return "gone"

    async def remove(self, container_id: str, *, force: bool) -> Removal:
        """:meth:`remove_now` in a thread."""
        return await self.run(self.remove_now, container_id, force=force)

    def close(self) -> None:
        """Let the threads end; calls under way are still finished."""
        self.executor.shutdown(wait=False)
        self._asking.shutdown(wait=False)


def _unreachable(error: BaseException) -> EngineUnknown:
    return EngineUnknown(
        f"the container engine gave no usable answer: {error}. Nothing is given out until it does. "
        "Check that it runs and that the hub may use its socket (DOCKER_HOST, client_kwargs)."
    )
