"""Tickets: calls that are followed to their end, whoever stopped waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from docker.errors import APIError, InvalidVersion
from requests.exceptions import RequestException

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from gpuspawner.calls import Abandoned, Ending, Ticket
from gpuspawner.engine import Engine


class Ends:
    """Records how tickets end, and in which thread."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []
        self.threads: list[threading.Thread] = []
        self._event = threading.Event()

    def __call__(self, ticket: Ticket, ending: Ending) -> None:
        self.endings.append(ending)
        self.threads.append(threading.current_thread())
        self._event.set()

    async def wait(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self._event.wait, 120)


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def edge(machine: FakeMachine) -> AsyncIterator[Engine]:
    client = FakeClient(machine)
    made = Engine(lambda: client)
    yield made
    made.close(wait=True)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def ticket(edge: Engine, ends: Ends) -> Ticket:
    return Ticket(edge, "L", ends)


CREATE = {"image": "img", "name": "one"}


async def test_create_keeps_the_id(ticket: Ticket, machine: FakeMachine, ends: Ends) -> None:
    answer = await ticket.create(dict(CREATE))
    assert ticket.container_id == answer["Id"]
    ticket.abandon()
    await ends.wait()
    assert ends.endings == [Ending.GONE]
    assert not machine.containers


async def test_abandoned_before_anything(ticket: Ticket, machine: FakeMachine, ends: Ends) -> None:
    ticket.abandon()
    await ends.wait()
    with pytest.raises(Abandoned):
        await ticket.create(dict(CREATE))
    assert ends.endings == [Ending.GONE]
    assert not machine.calls


async def test_abandoned_inside_a_call_ends_in_that_calls_thread(
    ticket: Ticket, machine: FakeMachine, ends: Ends
) -> None:
    with machine.gate("create", "after") as gate:
        creating = asyncio.ensure_future(ticket.create(dict(CREATE)))
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_arrived)
        ticket.abandon()
        ticket.abandon()
        assert not ends.endings, "not while the call is under way"
    await creating
    await ends.wait()
    assert ends.endings == [Ending.GONE]
    assert ends.threads[0].name.startswith("gpuspawner-start")
    assert not machine.containers


async def test_the_last_of_several_calls_ends_it(
    ticket: Ticket, machine: FakeMachine, ends: Ends
) -> None:
    await ticket.create(dict(CREATE))
    first, second = threading.Event(), threading.Event()
    calls = [asyncio.ensure_future(ticket.call(e.wait)) for e in (first, second)]
    await asyncio.sleep(0)
    while ticket._busy < 2:
        await asyncio.sleep(0.001)
    ticket.abandon()
    first.set()
    await calls[0]
    assert not ends.endings
    second.set()
    await calls[1]
    await ends.wait()
    assert ends.endings == [Ending.GONE]


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        ("500", Ending.GONE),
        ("unreachable", Ending.UNANSWERED),
        ("lost", Ending.UNANSWERED),
        ("cut", Ending.UNANSWERED),
        ("late", Ending.UNANSWERED),
    ],
)
async def test_only_an_http_answer_is_an_answer(
    ticket: Ticket, machine: FakeMachine, ends: Ends, fault: Any, ending: Ending
) -> None:
    machine.fault("create", fault)
    with pytest.raises((APIError, RequestException)):
        await ticket.create(dict(CREATE))
    ticket.abandon()
    await ends.wait()
    assert ends.endings == [ending]


async def test_what_docker_py_refuses_by_itself_was_never_sent(ticket: Ticket, ends: Ends) -> None:
    def work() -> None:
        raise InvalidVersion("device_requests param is not supported in API versions < 1.40")

    with pytest.raises(InvalidVersion):
        await ticket.call(work)
    ticket.abandon()
    await ends.wait()
    assert ends.endings == [Ending.GONE]


async def test_an_unanswered_start_is_answered_by_the_removal(
    ticket: Ticket, machine: FakeMachine, ends: Ends
) -> None:
    container = (await ticket.create(dict(CREATE)))["Id"]
    machine.fault("start", "cut")
    with pytest.raises(RequestException):
        await ticket.call(lambda: FakeClient(machine).start(container))
    ticket.abandon()
    await ends.wait()
    assert ends.endings == [Ending.GONE]
    assert not machine.containers


@pytest.mark.parametrize("fault", ["500", "unreachable", "lost", "cut"])
async def test_a_removal_without_success_is_left_to_be_tried_again(
    ticket: Ticket, machine: FakeMachine, ends: Ends, fault: Any
) -> None:
    await ticket.create(dict(CREATE))
    machine.fault("remove", fault)
    ticket.abandon()
    await ends.wait()
    assert ends.endings == [Ending.STAYS]


async def test_unforced_it_does_not_stop_what_runs(
    ticket: Ticket, machine: FakeMachine, ends: Ends
) -> None:
    container = (await ticket.create(dict(CREATE)))["Id"]
    machine.run(container)
    ticket.abandon(force=False)
    await ends.wait()
    assert ends.endings == [Ending.STAYS]
    assert machine.containers[container].live


async def test_kept_is_kept(ticket: Ticket, machine: FakeMachine, ends: Ends) -> None:
    container = (await ticket.create(dict(CREATE)))["Id"]
    ticket.keep()
    ticket.abandon()
    with pytest.raises(Abandoned):
        await ticket.call(lambda: None)
    assert container in machine.containers
    assert not ends.endings
