"""Waiting with a limit: what comes first is told, no cancel is lost, no task is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from gpuspawner.waiting import Wish, happens, within

LONG = 3600.0


async def test_the_outcome_is_told() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    async def fail() -> int:
        raise KeyError("x")

    assert await within(work(), LONG) == 3
    with pytest.raises(KeyError):
        await within(fail(), LONG)


async def test_over_time_the_work_is_cancelled_and_has_ended() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("yes")

    with pytest.raises(asyncio.TimeoutError):
        await within(work(), 0)
    assert ended == ["yes"]


async def test_a_result_that_comes_while_it_is_cancelled_counts() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        raise AssertionError

    assert await within(work(), 0) == "late"


async def test_an_error_that_comes_while_it_is_cancelled_counts() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError("cause") from None

    with pytest.raises(KeyError):
        await within(work(), 0)


async def test_a_cancel_reaches_the_work_and_then_the_caller() -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            raise

    caller = asyncio.ensure_future(within(work(), LONG))
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert told.is_set()


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancel_that_meets_the_result_is_not_lost(cancels: int) -> None:
    """Where ``asyncio.wait_for`` of Python 3.10 and 3.11 goes on as if nothing had been said."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    caller = asyncio.ensure_future(within(done, LONG))
    await asyncio.sleep(0)
    done.set_result(1)
    for _ in range(cancels):
        caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()


async def test_cancels_while_the_work_ends_are_not_lost_either() -> None:
    begun, ending, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        while True:
            try:
                await go.wait()
                return "stubborn"
            except asyncio.CancelledError:  # noqa: PERF203 - eaten, however often
                ending.set()

    caller = asyncio.ensure_future(within(work(), LONG))
    await begun.wait()
    caller.cancel()
    await ending.wait()
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done(), "not before the work has ended"
    go.set()
    await asyncio.wait([caller])
    assert caller.cancelled()


async def test_an_event_happens_or_not() -> None:
    event = asyncio.Event()
    assert not await happens(event, 0)
    waiting = asyncio.ensure_future(happens(event, LONG))
    await asyncio.sleep(0)
    event.set()
    assert await waiting


# -- wishes -------------------------------------------------------------------------------------


async def in_task(work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    async def run() -> None:
        await work()

    task = asyncio.ensure_future(run())
    await asyncio.wait([task])
    return task


async def test_a_wish_that_stands_is_no_hindrance() -> None:
    async def work() -> None:
        wish = Wish(asyncio.get_running_loop().create_future())
        wish.check()

    assert not (await in_task(work)).cancelled()


async def test_a_wish_that_was_withdrawn() -> None:
    async def work() -> None:
        wish = Wish()
        wish.withdraw()
        wish.check()

    assert (await in_task(work)).cancelled()


async def test_a_wish_whose_asker_has_gone() -> None:
    async def work() -> None:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wish = Wish(asked)
        asked.cancel()
        wish.check()

    assert (await in_task(work)).cancelled()


async def test_an_asker_that_had_gone_before_says_nothing() -> None:
    async def work() -> None:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked.cancel()
        Wish(asked).check()

    assert not (await in_task(work)).cancelled()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task of 3.10 forgets a cancel")
async def test_a_cancel_that_was_eaten_on_the_way_is_seen() -> None:
    reached: list[str] = []

    async def work() -> None:
        wish = Wish()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reached.append("eaten")
        wish.check()
        reached.append("went on")

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert reached == ["eaten"]
