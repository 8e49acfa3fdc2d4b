"""What goes wrong between a client and a fake engine, and how a test holds calls back.

Faults, by operation (``list``, ``inspect``, ``create``, ``start``, ``stop``, ``remove``, ``info``,
``archive``, ``pull``, and what :mod:`fakes.docker_api` names more):

=========== =====================================================================
unreachable connection refused; nothing happens
lost        no answer, and nothing happens
cut         the order is carried out, but its answer is lost
late        no answer now; the order is carried out at ``finish_late()``
hang        no answer and nothing happens, until ``heal()``
500         the engine answers 500 and does nothing
=========== =====================================================================
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import requests
from docker.errors import APIError

from .answers import api_error
from .parts import STUCK_SECONDS, Gate

Fault = Literal["unreachable", "lost", "cut", "late", "hang", "500"]
At = Literal["before", "inside", "after"]


class Trouble:
    """The faults that are due, and the gates that are shut.

    Attributes:
        calls: operations in the order in which they arrived.
        jitter: where set, calls take a random fraction of a millisecond before and after.
        turn: where set, told of each call before and after its effect, and inside of a start: it
            may hold the call back, and says which fault strikes. Lets a test decide the order.
    """

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.changed: Any = threading.Condition(self.lock)
        self.calls: list[str] = []
        self.jitter: random.Random | None = None
        self.turn: Callable[[str, At, Any], Fault | None] | None = None
        self._faults: list[tuple[str, Fault, int, Callable[[Any], bool] | None]] = []
        self._healed = 0
        self._late: list[Callable[[], Any]] = []
        self._gates: dict[tuple[str, str], Gate] = {}

    def fault(
        self,
        operation: str,
        kind: Fault,
        times: int = 1,
        when: Callable[[Any], bool] | None = None,
    ) -> None:
        """Let the next ``times`` calls fail (-1: until :meth:`heal`); ``*`` is every operation.

        Args:
            when: decides by the call's subject (container id; for a create its image, name and
                labels).
        """
        with self.lock:
            self._faults.append((operation, kind, times, when))

    def heal(self) -> None:
        """No more faults; what hangs is let go of."""
        with self.changed:
            self._faults.clear()
            self._healed += 1
            self.changed.notify_all()

    def finish_late(self) -> None:
        """Carry out the orders whose clients have gone."""
        with self.lock:
            late, self._late = self._late, []
        for effect in late:
            with suppress(APIError):  # as the engine would have answered, had anybody listened
                effect()

    @contextmanager
    def gate(self, operation: str, at: At) -> Iterator[Gate]:
        """Hold calls before or after their effect; ``inside`` is for start and restart only."""
        gate = Gate()
        with self.lock:
            self._gates[operation, at] = gate
        try:
            yield gate
        finally:
            with self.lock:
                self._gates.pop((operation, at), None)
            gate.open()

    def call(self, operation: str, effect: Callable[[], Any], subject: Any = None) -> Any:
        """Carry out one order of a client, with whatever fault is due."""
        with self.lock:
            self.calls.append(operation)
        fault = self.pass_gate(operation, "before", subject)
        self._wobble()
        fault = fault or self._take_fault(operation, subject)
        if fault == "unreachable":
            raise requests.exceptions.ConnectionError("connection refused")
        if fault == "lost":
            raise requests.exceptions.ReadTimeout("no answer")
        if fault == "hang":
            self._hang()
        if fault == "500":
            raise api_error(500, "the engine is unwell")
        if fault == "late":
            with self.lock:
                self._late.append(effect)
            raise requests.exceptions.ReadTimeout("no answer in time")
        answer = effect()
        self._wobble()
        fault = self.pass_gate(operation, "after", subject) or fault
        if fault == "cut":
            raise requests.exceptions.ConnectionError("connection reset")
        return answer

    def pass_gate(self, operation: str, at: At, subject: Any = None) -> Fault | None:
        if self.turn is not None:
            return self.turn(operation, at, subject)
        with self.lock:
            gate = self._gates.get((operation, at))
        if gate is not None:
            gate.pass_through()
        return None

    def _hang(self) -> None:
        with self.changed:
            healed = self._healed
            self.changed.wait_for(lambda: self._healed != healed, STUCK_SECONDS)
        raise requests.exceptions.ReadTimeout("no answer in time")

    def _take_fault(self, operation: str, subject: Any) -> Fault | None:
        with self.lock:
            for place, (wanted, kind, times, when) in enumerate(self._faults):
                if wanted not in (operation, "*") or (when is not None and not when(subject)):
                    continue
                if times > 0:
                    self._faults[place] = (wanted, kind, times - 1, when)
                    if times == 1:
                        del self._faults[place]
                return kind
        return None

    def _wobble(self) -> None:
        if self.jitter is not None:
            with self.lock:
                pause = self.jitter.random() * 0.001
            time.sleep(pause)
