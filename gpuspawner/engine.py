"""The container engine, asked from threads of our own (see :mod:`gpuspawner.connection`).

It answers two questions (what is listed, with the inspections that claims need; what the
engine is) and carries out three orders (see :mod:`gpuspawner.calls` for create and start, which
must be followed to their end even if nobody waits for them any more).

Only an HTTP answer counts as one: a cancelled, timed-out or reset call proves nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal, TypeVar

from docker.errors import APIError

from .answers import EngineInfo, read_date, read_info, read_row, read_time
from .asks import Asks, EngineFacts, parse_asks
from .claims import Detail, Listing, Row, Survey, needs_detail
from .connection import NO_ANSWER, Connection, Kind, NoAnswer, whole
from .errors import EngineUnknown
from .pulls import Pulls
from .sightings import Sightings
from .waiting import within

T = TypeVar("T")

#: What reading an answer raises that is none of an engine's.
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

Removal = Literal["gone", "removing", "runs"]


class Engine:
    """One engine.

    Args:
        make_client: builds a ``docker.APIClient``; called once, in a thread, since it may ask the
            engine for its version.
        threads: how many calls of each kind may be under way at once.
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
        self.connection = Connection(make_client, threads=threads)
        self.pulls = Pulls(self.connection.client)
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
        """The ``docker.APIClient`` that was made last, for what asks the engine nothing.

        Never blocks, so it is for the event loop; calls go through :meth:`call`.

        Raises:
            EngineUnknown: there was no connection to the engine yet.
        """
        client = self.connection.at_hand
        if client is None:
            raise _unreachable(NoAnswer("there was no connection yet"))
        return client

    def submit(
        self, function: Callable[..., T], *args: Any, kind: Kind = "inside", **kwargs: Any
    ) -> Future[T]:
        """Run in a thread of that kind."""
        return self.connection.submit(kind, function, *args, **kwargs)

    async def run(
        self, function: Callable[..., T], *args: Any, kind: Kind = "inside", **kwargs: Any
    ) -> T:
        """:meth:`submit`, and wait. Cancelling the wait does not end the call."""
        return await self.connection.run(kind, function, *args, **kwargs)

    def call(self, method: str, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """One method of the client, in a thread of its kind, sent whether anybody waits or not."""
        return asyncio.wrap_future(self.connection.call(method, *args, **kwargs))

    async def connect(self) -> None:
        """Make the client, off the event loop.

        Raises:
            EngineUnknown: the engine can't be reached.
        """
        if self.connection.at_hand is None:
            await self._ask(self.connection.client)

    async def _ask(self, function: Callable[..., T], *args: Any) -> T:
        """The answer to a question, in bounded time.

        Raises:
            EngineUnknown: none came, or none that can be read.
        """
        asked = self.connection.run("ask", function, *args)
        try:
            # More than the question's own limit: there may be others before it.
            return await within(asked, 2 * self._list_timeout_seconds)
        except asyncio.TimeoutError as error:
            raise _unreachable(NoAnswer("it is silent")) from error
        except (*NO_ANSWER, *_UNREADABLE) as error:
            raise _unreachable(error) from error

    async def info(self) -> EngineInfo:
        """What the engine is; kept for ``info_max_age_seconds``.

        Raises:
            EngineUnknown: no usable answer.
        """
        now = asyncio.get_running_loop().time()
        if self._info is None or now - self._info_at > self._info_max_age_seconds:
            self._info = await self._ask(self._read_info)
            self._info_at = now
        return self._info

    def _read_info(self) -> EngineInfo:
        return read_info(self._get_json("/info", self._list_timeout_seconds))

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
        rows, at = await self._ask(self._list)
        return self.sightings.listing(rows, at, begun=begun, now=self._clock())

    def _list(self) -> tuple[tuple[Row, ...], float]:
        response = self.get(
            "/containers/json", params={"all": 1}, timeout=self._list_timeout_seconds
        )
        items = response.json()
        if not isinstance(items, list):
            # An empty object would read as "no containers", and free every card.
            raise NoAnswer(f"{items!r:.40} instead of a list of containers")
        rows = tuple(read_row(item) for item in items)
        return rows, read_date(response.headers["Date"])

    def _get_json(self, path: str, timeout_seconds: float) -> Any:
        response = self.get(path, timeout=timeout_seconds)
        return whole(response, response.json())

    def get(self, path: str, **kwargs: Any) -> Any:
        """GET of the engine's API in the calling thread, with ``requests``' own arguments.

        docker-py has no public call that shows an answer's headers or takes a timeout.

        Raises:
            docker.errors.APIError: the engine answered with an error.
        """
        client = self.connection.client()
        return self._checked(client, client._get(client._url(path), **kwargs))

    def post(self, path: str, body: Mapping[str, Any], **kwargs: Any) -> Any:
        """POST, as :meth:`get`."""
        client = self.connection.client()
        return self._checked(client, client._post_json(client._url(path), data=body, **kwargs))

    def _checked(self, client: Any, response: Any) -> Any:
        client._raise_for_status(response)
        return response

    async def inspect(self, container_id: str) -> Mapping[str, Any] | None:
        """Inspect by id; None where the engine answers 404.

        Raises:
            EngineUnknown: no usable answer.
        """
        return await self._ask(self._inspect, container_id)

    def _inspect(self, container_id: str) -> Mapping[str, Any] | None:
        try:
            answer = self._get_json(f"/containers/{container_id}/json", self._list_timeout_seconds)
        except APIError as error:
            if error.status_code == 404:
                return None
            raise
        if not isinstance(answer, Mapping):
            raise NoAnswer(f"{answer!r:.40} instead of an inspection")
        return answer

    async def processes_of(self, container_id: str) -> frozenset[int]:
        """PIDs on the host of a container's processes; empty where the engine does not tell."""
        try:
            return await self._ask(self._top, container_id)
        except EngineUnknown:
            return frozenset()

    def _top(self, container_id: str) -> frozenset[int]:
        path, timeout = f"/containers/{container_id}/top", self._inspect_timeout_seconds
        answer = self.get(path, params={"ps_args": "-eo pid"}, timeout=timeout).json()
        column = answer["Titles"].index("PID")
        return frozenset(int(row[column]) for row in answer["Processes"])

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
        run = self.connection.run
        answers = await asyncio.gather(
            *(run("inspect", self._inspect_detail, row, facts) for row in ask)
        )
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
        except (*NO_ANSWER, *_UNREADABLE):
            return None
        try:
            asks = Asks() if row.ours else parse_asks(answer, facts, self.observers, self.own_ids)
            state = answer.get("State") or {}
            finished_at = read_time(state.get("FinishedAt"))
        except _UNREADABLE:
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
            self.connection.client().remove_container(container_id, v=True, force=force)
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
        return await self.run(self.remove_now, container_id, kind="end", force=force)

    def close(self, *, wait: bool = False) -> None:
        """Let the threads end; calls under way are still finished."""
        self.connection.close(wait=wait)


def _unreachable(error: BaseException) -> EngineUnknown:
    return EngineUnknown(
        f"the container engine gave no usable answer: {error}. Nothing is given out until it does. "
        "Check that it runs and that the hub may use its socket (DOCKER_HOST, client_kwargs)."
    )
