"""What the product relies on in an engine, run on real ones of both kinds and on the fake.

The fake is only worth as much as this: each fact is asserted once, for all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import docker
import pytest
from docker.errors import APIError

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.rows import HUB
from gpuspawner.answers import read_time
from gpuspawner.calls import Ending, Ticket
from gpuspawner.claims import Row
from gpuspawner.engine import Engine


@dataclass
class Side:
    """One engine under test.

    Attributes:
        request: puts the first card into a container.
        bad_request: makes a start fail.
    """

    client: Any
    image: str
    image_id: str
    request: dict[str, Any]
    bad_request: dict[str, Any]
    machine: FakeMachine | None = None
    made: list[str] = field(default_factory=list)

    def kwargs(self, name: str, *, gpu: bool = True, **labels: str) -> dict[str, Any]:
        host = self.client.create_host_config(device_requests=[self.request] if gpu else None)
        own = {"hub": HUB, "lease": name, "image": self.image_id, "devices": "GPU-0", **labels}
        return {
            "image": self.image,
            "name": name,
            "labels": {f"gpuspawner.{k}": v for k, v in own.items()},
            "host_config": host,
        }

    def create(self, name: str, **more: Any) -> str:
        return str(self.client.create_container(**self.kwargs(name, **more))["Id"])


class Contract:
    """The facts, for whichever side the subclass gives."""

    @pytest.fixture
    async def edge(self, side: Side) -> AsyncIterator[Engine]:
        edge = Engine(lambda: side.client)
        yield edge
        edge.close(wait=True)

    async def row(self, edge: Engine, container: str) -> Row:
        row = (await edge.listing()).by_id(container)
        assert row is not None
        return row

    async def test_a_listed_row_has_all_that_claims_need(self, side: Side, edge: Engine) -> None:
        container = side.create("one")
        row = await self.row(edge, container)
        assert len(row.id) == 64
        assert row.ours
        assert row.mine(HUB)
        assert row.names == ("/one",)
        assert row.state == "created"
        side.client.start(container)
        assert (await self.row(edge, container)).state == "running"

    async def test_ages_can_be_told_from_the_answers_own_date(
        self, side: Side, edge: Engine
    ) -> None:
        row = await self.row(edge, side.create("one"))
        at = (await edge.listing()).at
        assert 0 <= at - row.created < 60
        inspection = await edge.inspect(row.id)
        assert inspection is not None
        exact = read_time(inspection["Created"])
        assert exact is not None
        assert row.created == int(exact), "the list shows whole seconds, rounded down"

    async def test_a_later_create_has_no_earlier_stamp(self, side: Side, edge: Engine) -> None:
        first, second = side.create("one"), side.create("two")
        assert (await self.row(edge, first)).created <= (await self.row(edge, second)).created

    async def test_an_answered_removal_is_listed_at_once(self, side: Side, edge: Engine) -> None:
        container = side.create("one")
        assert await edge.remove(container, force=False) == "gone"
        assert (await edge.listing()).by_id(container) is None
        assert await edge.remove(container, force=False) == "gone"
        assert await edge.inspect(container) is None

    async def test_unforced_removal_leaves_what_runs(self, side: Side, edge: Engine) -> None:
        container = side.create("one")
        side.client.start(container)
        assert await edge.remove(container, force=False) == "runs"
        assert (await self.row(edge, container)).state == "running"
        assert await edge.remove(container, force=True) == "gone"

    async def test_a_taken_name_is_a_409(self, side: Side) -> None:
        side.create("one")
        with pytest.raises(APIError) as told:
            side.create("one")
        assert told.value.status_code == 409

    async def test_a_name_of_one_letter_is_a_400(self, side: Side) -> None:
        with pytest.raises(APIError) as told:
            side.create("a")
        assert told.value.status_code == 400

    async def test_an_unknown_image_is_a_404(self, side: Side) -> None:
        kwargs = {**side.kwargs("one"), "image": "gpuspawner-no-such-image"}
        with pytest.raises(APIError) as told:
            side.client.create_container(**kwargs)
        assert told.value.status_code == 404

    async def test_a_failed_start_stays_created_with_its_error(
        self, side: Side, edge: Engine
    ) -> None:
        host = side.client.create_host_config(device_requests=[side.bad_request])
        container = str(
            side.client.create_container(image=side.image, name="one", host_config=host)["Id"]
        )
        if side.machine is not None:
            side.machine.containers[container].start_error = "could not select device driver"
        with pytest.raises(APIError):
            side.client.start(container)
        assert (await self.row(edge, container)).state == "created"
        detail = (await edge.survey()).details[container]
        assert detail.error
        assert detail.finished_at is None

    async def test_an_exited_one_tells_when_it_ended(self, side: Side, edge: Engine) -> None:
        container = side.create("one")
        side.client.start(container)
        side.client.stop(container, timeout=0)
        survey = await edge.survey()
        detail = survey.details[container]
        assert (await self.row(edge, container)).state == "exited"
        assert detail.finished_at is not None
        # The Date header has whole seconds.
        assert -2 < survey.listing.at - detail.finished_at < 60

    async def test_what_was_asked_for_can_be_read_back(self, side: Side, edge: Engine) -> None:
        kwargs = side.kwargs("stranger")
        del kwargs["labels"]
        container = str(side.client.create_container(**kwargs)["Id"])
        asks = (await edge.survey()).details[container].asks
        assert asks.manner == "holds"
        assert asks.ids | {name.partition("=")[2] for name in asks.cdi} == {
            side.request["DeviceIDs"][0].rpartition("=")[2]
        }

    async def test_what_runs_tells_its_address_and_its_processes(
        self, side: Side, edge: Engine
    ) -> None:
        first, second = side.create("one"), side.create("two")

        def address(container: str) -> str:
            [row] = [r for r in side.client.containers(all=True) if r["Id"] == container]
            assert row["HostConfig"]["NetworkMode"] in ("default", "bridge")
            told = str(row["NetworkSettings"]["Networks"]["bridge"]["IPAddress"])
            settings = side.client.inspect_container(container)["NetworkSettings"]
            assert settings["Networks"]["bridge"]["IPAddress"] == told
            return told

        assert address(first) == ""
        with pytest.raises(APIError) as told:
            side.client.top(first)
        assert told.value.status_code == 409
        side.client.start(first)
        side.client.start(second)
        assert address(first)
        assert address(first) != address(second)
        top = side.client.top(first)
        pids = {int(row[top["Titles"].index("PID")]) for row in top["Processes"]}
        assert side.client.inspect_container(first)["State"]["Pid"] in pids
        side.client.restart(first, timeout=0)
        assert (await self.row(edge, first)).state == "running"
        assert address(first) not in ("", address(second))
        side.client.kill(first)
        await self.settled(edge, first, "exited")
        assert address(first) == ""

    async def settled(self, edge: Engine, container: str, state: str) -> None:
        """At the end of a process the list may still say that it runs, for a moment."""
        while (await self.row(edge, container)).state != state:
            await asyncio.sleep(0.01)

    async def test_a_paused_one_is_listed_so(self, side: Side, edge: Engine) -> None:
        container = side.create("one")
        with pytest.raises(APIError) as told:
            side.client.pause(container)
        assert told.value.status_code == 409
        side.client.start(container)
        side.client.pause(container)
        assert (await self.row(edge, container)).state == "paused"
        assert side.client.inspect_container(container)["State"]["Running"]
        assert await edge.remove(container, force=False) == "runs"
        side.client.unpause(container)
        assert (await self.row(edge, container)).state == "running"

    async def test_another_name_or_limit_leaves_the_rest_as_it_was(
        self, side: Side, edge: Engine
    ) -> None:
        container = side.create("one")
        before = await self.row(edge, container)
        side.client.rename(container, "another")
        side.client.update_container(container, mem_limit=2**28, memswap_limit=2**28)
        after = await self.row(edge, container)
        assert after.names == ("/another",)
        assert (after.labels, after.created) == (before.labels, before.created)
        inspection = await edge.inspect(container)
        assert inspection is not None
        assert inspection["HostConfig"]["Memory"] == 2**28

    async def test_a_command_inside_tells_output_and_exit_code(self, side: Side) -> None:
        container = side.create("one")
        with pytest.raises(APIError) as told:
            side.client.exec_create(container, ["true"])
        assert told.value.status_code == 409
        side.client.start(container)
        if side.machine is not None:
            side.machine.containers[container].inside = lambda words: (3, words[2][5:].encode())
        identity = side.client.exec_create(container, ["sh", "-c", "echo seen; exit 3"])["Id"]
        assert b"seen" in side.client.exec_start(identity)
        assert side.client.exec_inspect(identity)["ExitCode"] == 3

    async def test_a_commit_copies_the_labels_but_not_the_image_id(
        self, side: Side, edge: Engine
    ) -> None:
        container = side.create("one", gpu=False)
        if side.machine is not None:
            side.machine.commit(container, "gpuspawner-copy:1")
        else:
            side.client.commit(container, "gpuspawner-copy", "1")
        try:
            copy = side.client.create_container(image="gpuspawner-copy:1", name="copy")["Id"]
            row = await self.row(edge, copy)
            assert row.labels["gpuspawner.lease"] == "one"
            assert not row.ours
            assert not row.lease
        finally:
            if side.machine is None:
                side.client.remove_container(copy, force=True)
                side.client.remove_image("gpuspawner-copy:1")

    async def test_a_cancelled_create_leaves_nothing_once_abandoned(
        self, side: Side, edge: Engine
    ) -> None:
        for _ in range(5):
            ended = threading.Event()
            endings: list[Ending] = []

            def on_end(
                _: Ticket,
                ending: Ending,
                endings: list[Ending] = endings,
                ended: threading.Event = ended,
            ) -> None:
                endings.append(ending)
                ended.set()

            ticket = Ticket(edge, "L", on_end)
            creating = asyncio.ensure_future(ticket.create(side.kwargs("one")))
            while not (ticket._busy or creating.done()):
                await asyncio.sleep(0)
            creating.cancel()
            await asyncio.wait([creating])
            ticket.abandon()
            assert await asyncio.get_running_loop().run_in_executor(None, ended.wait, 120)
            assert endings == [Ending.GONE]
            assert not (await edge.listing()).rows


class TestFake(Contract):
    @pytest.fixture
    def side(self) -> Side:
        machine = FakeMachine()
        request = {"Driver": "nvidia", "DeviceIDs": ["GPU-0"], "Capabilities": [["gpu"]]}
        image_id = str(machine.images["img"]["Id"])
        return Side(FakeClient(machine), "img", image_id, request, request, machine)


class TestReal(Contract):
    @pytest.fixture
    def side(self, clean_engine: Any, tiny_image: str) -> Iterator[Side]:
        client = docker.APIClient(base_url=clean_engine.url, timeout=60, max_pool_size=20)
        uuid = clean_engine.uuids[0]
        if clean_engine.kind == "cdi":
            request: dict[str, Any] = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}"]}
            bad: dict[str, Any] = {
                "Driver": "cdi",
                "DeviceIDs": ["nvidia.com/gpu=GPU-of-yesterday"],
            }
        else:
            request = {"Driver": "nvidia", "DeviceIDs": [uuid], "Capabilities": [["gpu"]]}
            bad = {"Driver": "", "Count": 1, "Capabilities": [["no-such-capability"]]}
        image_id = str(client.inspect_image(tiny_image)["Id"])
        yield Side(client, tiny_image, image_id, request, bad)
        client.close()
