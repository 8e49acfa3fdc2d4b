"""Runs the threads and event loops of several hubs one step at a time, in an order that is given.

Each call to the engine is made in a thread that stops before the call's effect and after it (a
start, inside of it too) until it is told to go on. Only one thread runs at any moment, so that a
run depends on nothing but the order that was given. Time is virtual: it moves when it is told to.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar
from unittest import mock

from fakes.parts import STUCK_SECONDS
from fakes.trouble import At, Fault

T = TypeVar("T")


class Died(BaseException):
    """The process of this thread was killed."""


class Worker:
    """A thread of a hub that makes calls.

    Attributes:
        operation, at, subject: the call at which it stands.
    """

    def __init__(self, executor: SteppedExecutor, work: Callable[[], None]) -> None:
        self.executor, self.hub = executor, executor.hub
        self.operation, self.subject = "", None
        self.at: At | str = ""
        self._stage, self._work = executor.stage, work
        # Locks, as the quickest way for one thread to wake another and wait for it.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._told: Fault | str | None = None
        self._dies = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __repr__(self) -> str:
        return f"{self.hub}: {self.at} {self.operation}"

    def begin(self) -> None:
        self._thread.start()
        self.go()

    def go(self, told: Fault | str | None = None) -> None:
        """Let it run until its next stop; what it is told there is the fault that strikes."""
        self._told = told
        self._go.release()
        assert self._back.acquire(timeout=STUCK_SECONDS), f"{self} does not come to its next stop"

    def die(self) -> None:
        """Its process is killed here and now."""
        self._dies = True
        self.go()

    def stop(self, operation: str, at: At | str, subject: Any) -> Fault | str | None:
        """Called in the thread: stand here until told to go on."""
        if self._dies:
            raise Died
        self.operation, self.at, self.subject = operation, at, subject
        self._stage.standing.append(self)
        self._back.release()
        self._go.acquire()
        self._stage.standing.remove(self)
        if self._dies:
            raise Died
        return self._told

    def _run(self) -> None:
        self._go.acquire()
        self._stage.here.worker = self
        with suppress(Died):
            self._work()
        self._back.release()


class Stage:
    """All hubs' threads.

    Attributes:
        standing: the threads that stand at a call, in the order in which they came to stand.
    """

    def __init__(self) -> None:
        self.standing: list[Worker] = []
        self.here = threading.local()

    def turn(self, operation: str, at: At, subject: Any) -> Any:
        """For ``FakeMachine.turn``; who is no hub's thread passes."""
        worker: Worker | None = getattr(self.here, "worker", None)
        return worker.stop(operation, at, subject) if worker else None

    @contextmanager
    def threads_of(self, hub: str, owner: object) -> Iterator[SteppedExecutor]:
        """What is constructed meanwhile gets threads that are stepped."""
        executor = SteppedExecutor(self, hub, owner)
        with ExitStack() as patches:
            for name, module in list(sys.modules.items()):
                if name.startswith("gpuspawner.") and hasattr(module, "ThreadPoolExecutor"):
                    patches.enter_context(
                        mock.patch.object(module, "ThreadPoolExecutor", return_value=executor)
                    )
            yield executor


class SteppedExecutor(Executor):
    """A pool of threads that are stepped; once ``dead``, it does nothing any more.

    Args:
        hub: what it is called.
        owner: the process it belongs to.
    """

    def __init__(self, stage: Stage, hub: str, owner: object) -> None:
        self.dead = False
        self.stage, self.hub, self.owner = stage, hub, owner

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                answer = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - handed on to whoever waits
                future.set_exception(error)
            else:
                future.set_result(answer)

        if not self.dead:
            Worker(self, work).begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Its threads end by themselves."""


class OneAtATime:
    """Lock and condition of a machine whose threads run one at a time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Stand here; False if told that the time is over."""
        worker: Worker = self._stage.here.worker
        return worker.stop(worker.operation, "waiting", worker.subject) != "timeout"


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves when it is told to."""

    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self.moment = 0.0

    def time(self) -> float:
        return self.moment

    def settle(self) -> None:
        """Run until there is nothing to do at this moment."""
        while self._ready or self.next_timer() <= self.moment:
            self.call_soon(self.stop)
            self.run_forever()

    def next_timer(self) -> float:
        """When something is to happen next; infinite if nothing is."""
        waiting = [h.when() for h in self._scheduled if not h.cancelled()]
        return min(waiting, default=float("inf"))

    def end(self) -> None:
        """Cancel what runs, and close."""
        for _ in range(20):
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.settle()
        left = asyncio.all_tasks(self)
        self.close()
        assert not left, f"these do not end when cancelled: {left}"
