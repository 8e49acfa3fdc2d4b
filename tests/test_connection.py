"""The connection: threads that can't starve one another, one client, and what is an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, DockerException

from gpuspawner.calls import Ending, Ticket
from gpuspawner.connection import NO_ANSWER, Connection, EngineClient, Kind, NoAnswer, kind_of
from gpuspawner.engine import Engine
from gpuspawner.errors import EngineUnknown
from ground.injector import Injector
from ground.injector_faults import ANSWERS

KINDS: tuple[Kind, ...] = ("ask", "inspect", "start", "end", "inside")


# -- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stuck", KINDS)
async def test_no_kind_of_call_holds_up_another(stuck: Kind) -> None:
    connection = Connection(object, threads=2)
    gate = threading.Event()
    held = [connection.submit(stuck, gate.wait) for _ in range(50)]
    for kind in KINDS:
        if kind != stuck:
            assert await connection.run(kind, lambda: "answered") == "answered"
    assert not any(one.done() for one in held)
    gate.set()
    connection.close(wait=True)


def test_hanging_ends_are_many_before_one_waits() -> None:
    connection = Connection(object, threads=12)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        gate.wait()

    for _ in range(40):
        connection.submit("end", hang)
    for _ in range(40):
        assert begun.acquire(timeout=60)
    gate.set()
    connection.close(wait=True)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("create_container", "start"),
        ("start", "start"),
        ("create_volume", "inside"),
        ("stop", "end"),
        ("remove_container", "end"),
        ("inspect_container", "inspect"),
        ("inspect_image", "inspect"),
        ("port", "inspect"),
        ("exec_create", "inside"),
        ("exec_start", "inside"),
    ],
)
def test_each_method_has_its_kind(method: str, kind: Kind) -> None:
    assert kind_of(method) == kind


# -- making the client --------------------------------------------------------------------------


async def test_nothing_on_the_event_loop_makes_a_client() -> None:
    makers: list[threading.Thread] = []

    def make() -> object:
        makers.append(threading.current_thread())
        return object()

    engine = Engine(make)
    with pytest.raises(EngineUnknown, match="no connection yet"):
        _ = engine.client
    assert not makers
    await engine.connect()
    assert engine.client is engine.client
    assert [one.name.startswith("gpuspawner-ask") for one in makers] == [True]
    engine.close()


async def test_all_who_wait_for_a_client_are_told_at_once_that_there_is_none() -> None:
    gate, begun = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> object:
        made.append(1)
        begun.set()
        gate.wait()
        raise DockerException("no version")

    connection = Connection(make, threads=8)
    waiting = [connection.submit("ask", connection.client) for _ in range(8)]
    begun.wait()
    while sum(one.running() for one in waiting) < 8:
        await asyncio.sleep(0)
    gate.set()
    for one in waiting:
        with pytest.raises(DockerException, match="no version"):
            one.result()
    assert len(made) < 8
    connection.close(wait=True)


def test_a_client_that_can_not_be_made_for_whatever_reason_is_no_answer() -> None:
    def make() -> object:
        raise ValueError("version 'x'")

    connection = Connection(make, threads=1)
    with pytest.raises(NoAnswer, match="version 'x'"):
        connection.client()
    connection.close()


def test_an_outdated_client_is_replaced_and_stays_at_hand_meanwhile() -> None:
    class Client:
        outdated = False

    connection = Connection(Client, threads=1)
    first = connection.client()
    assert connection.client() is first
    first.outdated = True
    assert connection.at_hand is first
    assert connection.client() is not first
    connection.close()


# -- what is an answer --------------------------------------------------------------------------


@pytest.fixture
def injector(tmp_path: Path) -> Iterator[Injector]:
    """In front of nothing: each call is answered by a fault."""
    with Injector(tmp_path / "i", tmp_path / "none") as made:
        yield made


@pytest.fixture
async def client(injector: Injector) -> AsyncIterator[EngineClient]:
    made = EngineClient(base_url=injector.url, version="1.41", timeout=60)
    yield made
    made.close()


CALLS: dict[str, Any] = {
    "create": lambda c: c.create_container("image"),
    "start": lambda c: c.start("f00"),
    "stop": lambda c: c.stop("f00"),
    "remove": lambda c: c.remove_container("f00"),
    "inspect": lambda c: c.inspect_container("f00"),
    "image": lambda c: c.inspect_image("some:tag"),
    "volume": lambda c: c.inspect_volume("some"),
    "exec-create": lambda c: c.exec_create("f00", ["true"]),
}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [(operation, kind) for operation in CALLS for kind in ANSWERS if kind != "500-json"],
)
def test_what_no_engine_says_is_no_answer(
    injector: Injector, client: EngineClient, operation: str, kind: Any
) -> None:
    with injector.fault(operation, kind), pytest.raises(NO_ANSWER) as caught:
        CALLS[operation](client)
    assert not isinstance(caught.value, APIError)


@pytest.mark.parametrize("operation", CALLS)
def test_the_engines_own_error_is_one(
    injector: Injector, client: EngineClient, operation: str
) -> None:
    with injector.fault(operation, "500-json"), pytest.raises(APIError, match="unwell") as caught:
        CALLS[operation](client)
    assert caught.value.status_code == 500


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("question", ["listing", "info", "inspect"])
async def test_a_question_without_an_engines_answer_is_unknown(
    injector: Injector, question: str, kind: Any
) -> None:
    engine = Engine(lambda: EngineClient(base_url=injector.url, version="1.41"))
    asked = {"listing": engine.listing, "info": engine.info}.get(
        question, lambda: engine.inspect("f00")
    )
    with injector.fault("*", kind), pytest.raises(EngineUnknown, match="no usable answer"):
        await asked()
    engine.client.close()
    engine.close(wait=True)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("500-json", Ending.GONE),
        ("500-html", Ending.UNANSWERED),
        ("500-empty", Ending.UNANSWERED),
        ("200-list", Ending.UNANSWERED),
        ("200-html", Ending.UNANSWERED),
        ("200-empty", Ending.UNANSWERED),
        ("reset", Ending.UNANSWERED),
    ],
)
async def test_a_create_without_an_engines_answer_may_still_create(
    injector: Injector, kind: Any, ending: Ending
) -> None:
    engine = Engine(lambda: EngineClient(base_url=injector.url, version="1.41"))
    ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def end(_: Ticket, how: Ending) -> None:
        loop.call_soon_threadsafe(ended.set_result, how)

    ticket = Ticket(engine, "L", end)
    with injector.fault("*", kind), pytest.raises(NO_ANSWER):
        await ticket.create({"image": "some"})
    ticket.abandon()
    assert await ended is ending
    engine.client.close()
    engine.close(wait=True)


@pytest.mark.parametrize("kind", ["200-list", "200-html", "200-empty", "500-html", "reset"])
async def test_a_pull_without_an_engines_answer_is_none(injector: Injector, kind: Any) -> None:
    engine = Engine(lambda: EngineClient(base_url=injector.url, version="1.41"))
    with injector.fault("pull", kind), pytest.raises(NO_ANSWER) as caught:
        await engine.pulls.pull("some", "tag")
    assert not isinstance(caught.value, APIError)
    engine.client.close()
    engine.close(wait=True)


def test_a_version_that_can_not_be_read_is_no_answer(injector: Injector) -> None:
    for kind in ANSWERS:
        with injector.fault("version", kind), pytest.raises(NO_ANSWER):
            EngineClient(base_url=injector.url, version="auto")


def test_orders_are_waited_for_longer_than_questions() -> None:
    client = EngineClient(base_url="http://fake:1", version="1.41", timeout=60)
    waited: dict[str, float] = {}

    def note(method: str, url: str, **kwargs: Any) -> Any:
        waited[url.rpartition("/v1.41/")[2]] = kwargs["timeout"]
        raise ConnectionError

    client.request = note
    for call in CALLS.values():
        with pytest.raises(ConnectionError):
            call(client)
    assert {path for path, seconds in waited.items() if seconds > 60} == {
        "containers/create",
        "containers/f00/start",
        "containers/f00/stop",
        "containers/f00",
    }
    client.close()
