"""Looks at the cards in the background, for as long as that may change something.

While a server runs, its card may fall ill or somebody else may come; while a card is not well, it
may heal. Nobody need ask for either to be noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from logging import Logger

from .alarms import Alarms, alarms_of
from .claims import LIVE_STATES
from .errors import EngineUnknown, ProbeError
from .health import Condition, Look
from .prober import Prober

#: Until the next look while something changes; twice as long after each look that shows no change.
HEAL_SECONDS = 1.0


class Watch:
    """The background looks, and the alarms that come of all looks.

    Args:
        spawn: runs work in the background, and logs its failures.
        interval_seconds: until a spawner tells the hub's poll interval.
    """

    def __init__(
        self,
        prober: Prober,
        log: Logger,
        spawn: Callable[[Awaitable[None]], object],
        *,
        interval_seconds: float = 30.0,
    ) -> None:
        self.alarms = Alarms()
        self._prober = prober
        self._log = log
        self._spawn = spawn
        self._interval_seconds = interval_seconds
        self._patience = HEAL_SECONDS
        self._servers = False
        self._conditions: Mapping[str, Condition] = {}
        self._timer: asyncio.TimerHandle | None = None

    def polled(self, interval_seconds: float) -> None:
        """A spawner polls a server with a GPU: the cards are looked at as often as that."""
        if interval_seconds > 0:
            self._interval_seconds = interval_seconds
        self._servers = True
        self._plan()

    def looked(self, look: Look) -> None:
        """Somebody had a look: tell what has changed, and plan the next."""
        health = self._prober.health
        begun, over = self.alarms.update(alarms_of(look, health))
        for alarm in begun:
            (self._log.error if alarm.serious else self._log.warning)("%s", alarm.text)
        for alarm in over:
            self._log.info("%s", alarm.over)
        changed = dict(health.conditions) != dict(self._conditions)
        self._conditions = health.conditions
        self._patience = HEAL_SECONDS if changed else 2 * self._patience
        self._servers = any(
            claim.whose == "mine" and claim.row.state in LIVE_STATES
            for claim in look.after.claims.claims
        )
        self._plan()

    @property
    def _pause(self) -> float | None:
        """Seconds from one look to the next; None if there is nothing to look for."""
        if self._prober.health.unwell:
            return min(self._patience, self._interval_seconds)
        return self._interval_seconds if self._servers else None

    def _plan(self) -> None:
        pause = self._pause
        if pause is not None:
            self._look_at(self._prober.health.begun + pause)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, moment: float) -> None:
        loop = asyncio.get_running_loop()
        due = max(moment, loop.time())
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._due)

    def _due(self) -> None:
        self._timer = None
        self._spawn(self._look())

    async def _look(self) -> None:
        try:
            await asyncio.shield(self._prober.refresh())
        except (EngineUnknown, ProbeError):
            self._try_again()  # whoever needs a card is told
        except Exception:
            # Else a card that heals would not come back by itself.
            self._try_again()
            raise

    def _try_again(self) -> None:
        self._patience = min(2 * self._patience, self._interval_seconds)
        self._look_at(asyncio.get_running_loop().time() + self._patience)
