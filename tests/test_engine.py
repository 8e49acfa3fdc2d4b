"""The engine's edge: what is read from its answers, what is asked again, what is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from docker.errors import APIError
from requests import Response
from requests.exceptions import ConnectionError as Unreachable

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.rows import HUB, IMAGE
from gpuspawner.answers import read_date, read_info, read_row, read_time
from gpuspawner.connection import NoAnswer
from gpuspawner.engine import Engine
from gpuspawner.errors import EngineUnknown


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def edge(machine: FakeMachine) -> AsyncIterator[Engine]:
    made = Engine(
        lambda: FakeClient(machine),
        threads=2,
        observers=["lab/exporter"],
        inspect_timeout_seconds=0.02,
        unknown_retry_seconds=0.05,
        info_max_age_seconds=3600,
    )
    yield made
    made.close()


def ours(**more: str) -> dict[str, str]:
    own = {"hub": HUB, "lease": "L", "devices": "GPU-0", **more}
    return {f"gpuspawner.{key}": value for key, value in own.items()}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T00:00:10.5Z", 10.5),
        ("1970-01-01T00:00:10.000000123Z", 10.000000123),
        ("1970-01-01T02:00:10+02:00", 10.0),
        ("1970-01-01T02:00:10.25+02:00", 10.25),
        ("1969-12-31T19:00:10.5-05:00", 10.5),
    ],
)
def test_the_engines_timestamps(text: str | None, seconds: float | None) -> None:
    assert read_time(text) == (None if seconds is None else pytest.approx(seconds, abs=1e-9))


def test_the_date_header() -> None:
    assert read_date("Thu, 01 Jan 1970 00:01:40 GMT") == 100.0


def test_a_row_with_everything_missing_is_still_a_row() -> None:
    row = read_row({"Id": "c", "Labels": None, "Names": None})
    assert (row.id, row.created, row.labels, row.names, row.ours) == ("c", 0, {}, (), False)
    row = read_row({"Id": "c", "State": "Running", "Created": 5, "ImageID": IMAGE})
    assert (row.state, row.created, row.image_id) == ("running", 5, IMAGE)


def test_info_names_nvidias_runtimes_and_cdi_devices() -> None:
    info = read_info(
        {
            "ServerVersion": "28.5.2",
            "DefaultRuntime": "gpu-rt",
            "Runtimes": {
                "runc": {"path": "runc"},
                "gpu-rt": {"path": "/usr/bin/nvidia-container-runtime.cdi"},
                "shim": {"runtimeType": "io.containerd.runc.v2"},
                "odd": None,
            },
            "DiscoveredDevices": [
                {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
                {"Source": "other", "ID": "x"},
            ],
        }
    )
    assert info.facts.nvidia_runtimes == {"nvidia", "gpu-rt"}
    assert info.facts.default_runtime == "gpu-rt"
    assert info.cdi_devices == {"nvidia.com/gpu=0"}
    assert info.version == "28.5.2"
    old = read_info({"Runtimes": None, "DiscoveredDevices": None})
    assert (old.facts.default_runtime, old.cdi_devices) == ("runc", frozenset())


async def test_ages_come_from_the_engines_clock(edge: Engine, machine: FakeMachine) -> None:
    before = (await edge.listing()).at
    machine.advance(500)
    assert (await edge.listing()).at == before + 500


async def test_an_outsider_is_inspected_once_in_its_life(
    edge: Engine, machine: FakeMachine
) -> None:
    one = machine.add(cards=("GPU-0",), state="running")
    for _ in range(3):
        survey = await edge.survey()
        assert survey.details[one.id].asks.ids == {"GPU-0"}
    assert machine.calls.count("inspect") == 1
    machine.rm_f(one.id)
    assert not (await edge.survey()).details
    assert not edge._asks, "what is gone is forgotten"


async def test_what_can_change_is_asked_each_time(edge: Engine, machine: FakeMachine) -> None:
    one = machine.add(cards=("GPU-0",), state="created")
    assert not (await edge.survey()).details[one.id].error
    one.error = "no such device"
    assert (await edge.survey()).details[one.id].error == "no such device"
    machine.run(one.id)
    machine.exit(one.id)
    assert (await edge.survey()).details[one.id].finished_at == pytest.approx(machine.now)
    machine.advance(50)
    machine.run(one.id)
    machine.exit(one.id)
    assert (await edge.survey()).details[one.id].finished_at == pytest.approx(machine.now)


async def test_ours_is_inspected_only_once_it_has_exited(
    edge: Engine, machine: FakeMachine
) -> None:
    image = str(machine.images["img"]["Id"])
    one = machine.add(cards=("GPU-0",), labels=ours(image=image))
    await edge.survey()
    machine.run(one.id)
    await edge.survey()
    assert "inspect" not in machine.calls
    machine.exit(one.id)
    survey = await edge.survey()
    assert survey.details[one.id].finished_at == pytest.approx(machine.now)


async def test_a_row_that_is_being_created_is_known_as_missing(
    edge: Engine, machine: FakeMachine
) -> None:
    one = machine.add(cards=("GPU-0",), answers=False)
    assert (await edge.survey()).details[one.id].missing
    one.answers = True
    assert (await edge.survey()).details[one.id].asks.ids == {"GPU-0"}


async def test_a_container_inside_its_start_is_waited_for(
    edge: Engine, machine: FakeMachine
) -> None:
    edge._unknown_retry_seconds = 20
    one = machine.add(cards=("GPU-0",))
    one.starting = True
    asking = asyncio.ensure_future(edge.survey())
    while machine.calls.count("inspect") < 2:
        await asyncio.sleep(0.001)
    with machine.changed:
        one.starting = False
        machine.set_running(one)
    survey = await asking
    assert survey.listing.rows[0].state == "running"


async def test_one_that_stays_silent_makes_everything_unknown(
    edge: Engine, machine: FakeMachine
) -> None:
    one = machine.add(cards=("GPU-0",))
    one.starting = True
    with pytest.raises(EngineUnknown, match=one.id[:12]):
        await edge.survey()


@pytest.mark.parametrize("operation", ["list", "info"])
@pytest.mark.parametrize("fault", ["unreachable", "lost", "cut", "500"])
async def test_no_usable_answer_is_unknown(
    edge: Engine, machine: FakeMachine, operation: str, fault: Any
) -> None:
    machine.fault(operation, fault)
    with pytest.raises(EngineUnknown, match="gave no usable answer"):
        await edge.survey()
    await edge.survey()


async def test_the_engine_cannot_be_reached_at_all() -> None:
    def make() -> Any:
        raise Unreachable("connection refused")

    edge = Engine(make)
    with pytest.raises(EngineUnknown, match="DOCKER_HOST"):
        await edge.connect()
    with pytest.raises(EngineUnknown):
        await edge.listing()
    edge.close()


async def test_an_error_reaches_all_who_share_the_survey(
    edge: Engine, machine: FakeMachine
) -> None:
    machine.fault("list", "500")
    results = await asyncio.gather(*(edge.survey() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(r, EngineUnknown) for r in results)
    assert machine.calls.count("list") == 1


async def test_a_cancelled_caller_harms_no_other(edge: Engine, machine: FakeMachine) -> None:
    with machine.gate("list", "before"):
        asking = [asyncio.ensure_future(edge.survey()) for _ in range(3)]
        while "list" not in machine.calls:
            await asyncio.sleep(0.001)
        asking[0].cancel()
        await asyncio.wait(asking[:1])
    await asyncio.gather(*asking[1:])
    await edge.survey()


async def test_inspect_by_id(edge: Engine, machine: FakeMachine) -> None:
    one = machine.add()
    assert (await edge.inspect(one.id) or {})["Id"] == one.id
    assert await edge.inspect("absent") is None
    machine.fault("inspect", "500")
    with pytest.raises(EngineUnknown):
        await edge.inspect(one.id)


async def test_removal_answers(edge: Engine, machine: FakeMachine) -> None:
    running, created, going = (machine.add(state=s) for s in ("running", "created", "removing"))
    assert await edge.remove(running.id, force=False) == "runs"
    assert await edge.remove(created.id, force=False) == "gone"
    assert await edge.remove(created.id, force=True) == "gone"
    assert await edge.remove(going.id, force=True) == "removing"
    assert await edge.remove(running.id, force=True) == "gone"
    stuck = machine.add(state="running", unkillable=True)
    with pytest.raises(APIError):
        await edge.remove(stuck.id, force=True)


async def test_configured_observers_hold_nothing(edge: Engine, machine: FakeMachine) -> None:
    machine.add_image("lab/exporter:2")
    one = machine.add(cards=("GPU-0",), image="lab/exporter:2", state="running")
    assert (await edge.survey()).details[one.id].asks.manner == "observes"


@pytest.mark.parametrize("answer", [{"message": "ok"}, [{"no": "id"}], [None], "text", 3])
async def test_an_answer_that_is_no_container_list_is_unknown(
    edge: Engine, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    class Odd:
        headers: dict[str, str] = {}  # noqa: RUF012 - no Date either

        def json(self) -> object:
            return answer

    monkeypatch.setattr(edge, "get", lambda *_args, **_kwargs: Odd())
    with pytest.raises(EngineUnknown):
        await edge.listing()


@pytest.mark.parametrize("path", ["/containers/json", "/info", "/containers/{id}/json"])
@pytest.mark.parametrize(
    "body", ["{}", '""', '{"message": "ok"}', '[{"Id": "x", "Created": 1e999}]', "[" * 100_000]
)
async def test_a_200_of_somebody_else_frees_nothing(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, path: str, body: str
) -> None:
    """A proxy's own page may be JSON: an empty object is no empty list of containers."""
    taken = machine.add(cards=("GPU-0",), state="running")
    edge = Engine(
        lambda: FakeClient(machine),
        threads=2,
        inspect_timeout_seconds=0.02,
        unknown_retry_seconds=0.05,
    )
    asked = edge.get

    def get(url: str, **kwargs: Any) -> Any:
        response = asked(url, **kwargs)
        if url == path.format(id=taken.id):
            response._content = body.encode()
        return response

    monkeypatch.setattr(edge, "get", get)
    with pytest.raises(EngineUnknown):
        await edge.survey()
    monkeypatch.setattr(edge, "get", asked)
    assert (await edge.survey()).details[taken.id].asks.manner == "holds"
    edge.close()


def test_an_order_answered_by_something_nested_too_deep_has_no_answer() -> None:
    """Else a create would count as refused, and its reservation end with the container there."""
    client = FakeClient(FakeMachine())
    response = Response()
    response.url, response.status_code = "http://fake/containers/create", 201
    response._content = b"[" * 100_000
    with pytest.raises(NoAnswer):
        client._result(response, json=True)
    response.status_code = 500
    with pytest.raises(NoAnswer):
        client._raise_for_status(response)
