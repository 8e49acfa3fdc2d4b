"""The short list of attempts in flight in this process: the only state beside the engine's.

A *reservation* lives from placement until its attempt has ended, and is counted once together with
its container, by lease. The steps an attempt may take are those of :mod:`gpuspawner.states`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from .states import TRANSITIONS, State


@dataclass
class Attempt:
    """One try to start one server.

    Attributes:
        devices: UUIDs reserved; empty for a server without a GPU.
        owner: (user, server) in whose name it is counted.
        memory_mib: memory of the smallest of the cards, None if not told.
        profile: slug of what was asked for.
    """

    lease: str
    devices: tuple[str, ...]
    share: Fraction
    owner: tuple[str, str]
    memory_mib: int | None = None
    profile: str = ""
    state: State = State.RESERVED


class Attempts:
    """The attempts in flight, by lease.

    ``ended`` counts the reservations that ended: a listing begun before the last of them may lack
    that attempt's container, so it must not be used for placing. ``over`` counts them with those
    of servers without a GPU, which limits count too.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}
        self.ended = 0
        self.over = 0

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts.values())

    def __contains__(self, lease: object) -> bool:
        return lease in self._attempts

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        """Reserve.

        Raises:
            ValueError: the lease is in use.
        """
        if attempt.lease in self._attempts:
            raise ValueError(f"lease {attempt.lease} is already in flight")
        self._attempts[attempt.lease] = attempt

    def move(self, attempt: Attempt, state: State) -> None:
        """Take one step of the table.

        Raises:
            ValueError: the table has no such step (also: ending twice).
        """
        if state not in TRANSITIONS[attempt.state]:
            raise ValueError(f"lease {attempt.lease}: no step {attempt.state} → {state}")
        attempt.state = state
        if not TRANSITIONS[state]:
            del self._attempts[attempt.lease]
            self.over += 1
            if attempt.devices:
                self.ended += 1

    def leases(self) -> Collection[str]:
        return self._attempts.keys()

    def taking(self, near: Iterable[str]) -> Fraction:
        """The sum of shares reserved on any of the devices ``near``."""
        wanted = frozenset(near)
        return sum((a.share for a in self if wanted.intersection(a.devices)), Fraction(0))
