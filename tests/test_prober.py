"""The newest inventory at hand; a missed probe keeps the last one for a while."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import Any

import pytest

from fakes.rows import HUB, cards
from gpuspawner.claims import Claims, Listing, Survey, read_claims
from gpuspawner.devices import Inventory
from gpuspawner.errors import EngineUnknown, ProbeError
from gpuspawner.health import Limits
from gpuspawner.prober import Prober

MISSED = ProbeError("no answer", kind="timeout")


class Source:
    """Answers from a list, the last one for ever; may be held back."""

    description = "a test"

    def __init__(self, answers: Iterable[Inventory | ProbeError]) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()

    async def read(self) -> Inventory:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await self.open.wait()
        if isinstance(answer, ProbeError):
            raise answer
        return answer


class Engine:
    """An engine that lists nothing; may be away."""

    def __init__(self) -> None:
        self.away = False
        self.asked = 0

    async def survey(self) -> Survey:
        self.asked += 1
        if self.away:
            raise EngineUnknown("away")
        return Survey(Listing((), 1000.0))

    def claims(self, survey: Survey, inventory: Inventory) -> Claims:
        return read_claims(survey, inventory, HUB)

    async def processes_of(self, container_id: str) -> frozenset[int]:
        raise AssertionError("nobody is there to be asked about")

    def lately(self) -> dict[str, frozenset[str]]:
        return {}


def prober(source: Source, max_age_seconds: float = 60, engine: Engine | None = None) -> Prober:
    return Prober(
        source,
        engine or Engine(),
        limits=Limits(),
        max_age_seconds=max_age_seconds,
        log=logging.getLogger("test"),
    )


async def test_a_fresh_answer_is_used_again_and_an_old_one_is_not() -> None:
    source = Source([cards(1), cards(2)])
    probe = prober(source)
    assert len((await probe.latest(60)).devices) == 1
    assert len((await probe.latest(60)).devices) == 1
    assert source.asked == 1
    assert len((await probe.latest(-1)).devices) == 2


async def test_the_cuda_version_is_the_last_one_told() -> None:
    probe = prober(Source([Inventory(cuda_version="12.8")]))
    assert probe.cuda_version is None
    await probe.latest(60)
    assert probe.cuda_version == "12.8"


async def test_a_missed_probe_keeps_the_last_for_a_while_only() -> None:
    source = Source([cards(1), MISSED])
    assert (await prober(source).latest(60)).devices
    source = Source([cards(1), MISSED])
    probe = prober(source)
    await probe.latest(60)
    assert (await probe.latest(-1)).devices
    assert source.asked == 2
    strict = prober(Source([cards(1), MISSED]), max_age_seconds=-1)
    await strict.latest(60)
    with pytest.raises(ProbeError):
        await strict.latest(-1)


async def test_without_any_answer_nothing_is_known(caplog: Any) -> None:
    probe = prober(Source([MISSED, cards(1)]))
    with pytest.raises(ProbeError):
        await probe.latest(60)
    assert "could not be probed" in caplog.text
    assert (await probe.latest(60)).devices


async def test_those_who_wait_share_one_probe_and_a_cancel_harms_no_other() -> None:
    source = Source([cards(1)])
    source.open.clear()
    probe = prober(source)
    waiting = [asyncio.ensure_future(probe.latest(60)) for _ in range(5)]
    while not source.asked:
        await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    source.open.set()
    assert len(await asyncio.gather(*waiting[1:])) == 4
    assert source.asked == 1


async def test_a_probe_that_nobody_waits_for_may_fail_quietly() -> None:
    probe = prober(Source([MISSED]))
    probe.refresh()
    await asyncio.wait([probe.refresh()])


async def test_an_answer_of_any_age_is_still_an_answer() -> None:
    source = Source([cards(1)])
    assert (await prober(source).latest(math.inf)).devices
    assert source.asked == 1


async def test_a_look_is_a_probe_between_two_listings() -> None:
    source, engine = Source([cards(1)]), Engine()
    probe = prober(source, engine=engine)
    source.open.clear()
    look = probe.refresh()
    while not source.asked:
        await asyncio.sleep(0)
    assert engine.asked == 1
    source.open.set()
    await look
    assert engine.asked == 2


async def test_without_a_listing_there_is_no_look_and_the_last_is_kept_for_a_while() -> None:
    engine = Engine()
    probe = prober(Source([cards(1), cards(2)]), engine=engine)
    engine.away = True
    with pytest.raises(EngineUnknown):
        await probe.latest(60)
    engine.away = False
    await probe.latest(60)
    engine.away = True
    assert len((await probe.latest(-1)).devices) == 1
    with pytest.raises(EngineUnknown):
        await probe.renewed()


async def test_a_renewed_look_begins_after_the_question() -> None:
    source = Source([cards(1), cards(2), cards(3)])
    source.open.clear()
    probe = prober(source)
    probe.refresh()
    while not source.asked:
        await asyncio.sleep(0)
    renewed = [asyncio.ensure_future(probe.renewed()) for _ in range(3)]
    await asyncio.sleep(0)
    source.open.set()
    assert [len(i.devices) for i in await asyncio.gather(*renewed)] == [2, 2, 2]
    assert source.asked == 2


async def test_a_driver_that_fails_is_told_once_and_its_recovery_too(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    probe = prober(Source([MISSED, MISSED, cards(1)]))
    for _ in range(2):
        with pytest.raises(ProbeError):
            await probe.latest(60)
    await probe.latest(60)
    assert caplog.text.count("could not be probed") == 1
    assert caplog.text.count("can be probed again") == 1
