"""Waiting with a limit: no cancel is lost and no task is left behind, on every Python.

``asyncio.wait_for`` swallows a cancel that meets a result, up to Python 3.11: the one who was
cancelled goes on as if nothing had been said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(work: Awaitable[T], seconds: float) -> T:
    """The outcome of ``work``; it is cancelled, and has ended, if that takes longer.

    A cancel of the caller always goes on to the caller, even if ``work`` has a result by then: its
    result is lost, so whoever starts something that way must look after it when cancelled.

    Raises:
        asyncio.TimeoutError: it took longer, and ended without a result of its own.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        await _end(task)
        raise
    if not done:
        await _end(task)
        if task.cancelled():
            raise asyncio.TimeoutError
    return task.result()


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False if it takes longer."""
    try:
        await within(event.wait(), seconds)
    except asyncio.TimeoutError:
        return event.is_set()
    return True


class Wish:
    """Whether what the current task makes is still wanted.

    A cancel may be eaten on its way in: ``asyncio.wait_for`` of Python 3.10 and 3.11 does so, in
    whatever library, and so does any ``except`` that is too wide.

    Args:
        asked_by: the future for whose sake it is made, if that is known.
    """

    def __init__(self, asked_by: asyncio.Future[Any] | None = None) -> None:
        self._futures = [f for f in (asyncio.current_task(), asked_by) if f and not f.done()]
        self._over = False

    def withdraw(self) -> None:
        """It is not wanted any more."""
        self._over = True

    def check(self) -> None:
        """Go on only if it is wanted.

        Raises:
            asyncio.CancelledError: it is not.
        """
        if self._over or any(map(_given_up, self._futures)):
            raise asyncio.CancelledError


def _given_up(future: asyncio.Future[Any]) -> bool:
    # Up to Python 3.10 a task does not know that somebody tried to cancel it.
    cancelling = getattr(future, "cancelling", None)
    return future.done() or bool(cancelling and cancelling())


async def _end(task: asyncio.Future[T]) -> None:
    """Cancel, and wait until it has ended; cancels that come meanwhile are passed on after."""
    cancelled = False
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # noqa: PERF203 - it is what may come again
            cancelled = True
            task.cancel()
    if not task.cancelled():
        task.exception()  # looked at, so that nobody logs it as forgotten
    if cancelled:
        raise asyncio.CancelledError
