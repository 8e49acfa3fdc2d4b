"""What goes wrong: several lanes at once, each a thread with its own choices from one seed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .oracle import Oracle

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

#: One thing that goes wrong; it ends before it returns, but for what it leaves on purpose.
Deed = Callable[[random.Random], None]


class Lane:
    """Deeds one after the other at random moments, each of them before any comes again."""

    def __init__(
        self,
        name: str,
        deeds: Sequence[Deed],
        seed: str,
        *,
        gap_seconds: float,
        ended: threading.Event,
    ) -> None:
        self._deeds = list(deeds)
        self._random = random.Random(f"{seed}/{name}")
        self._gap_seconds = gap_seconds
        self._ended = ended

    def run(self) -> None:
        """Act until the noise has ended."""
        for deed in self._order():
            if self._ended.wait(self._random.uniform(0.2, 1.8) * self._gap_seconds):
                return
            deed(self._random)

    def _order(self) -> Iterator[Deed]:
        while True:
            self._random.shuffle(self._deeds)
            yield from self._deeds


class Threads:
    """Works that go on, each in a thread, within a ``with``; the first fault is raised at its end.

    Args:
        ended: set at the end, and at a fault; each work heeds it.
    """

    def __init__(self, works: Iterable[Callable[[], object]], ended: threading.Event) -> None:
        self._ended = ended
        self._faults: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        if self._faults:
            raise self._faults[0]

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._faults.append(error)
            self._ended.set()


class Doing:
    """Tells the oracle what is done, and pauses that end with the noise."""

    def __init__(self, oracle: Oracle, ended: threading.Event) -> None:
        self.oracle = oracle
        self.ended = ended

    def tell(self, what: str, which: str = "", cards: Iterable[str] = ("",)) -> None:
        """Count it and keep it for the stories, of all cards or of these."""
        self.oracle.count(what)
        self.oracle.note(time.time(), f"{what} {which}".rstrip(), cards)

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the noise goes on."""
        self.ended.wait(seconds)
