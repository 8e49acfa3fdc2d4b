"""One hub as the pool sees it, without JupyterHub: a pool, and spawns that go the whole way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

from gpuspawner.attempts import Attempt
from gpuspawner.calls import Ticket
from gpuspawner.engine import Engine
from gpuspawner.pool import GPUPool
from gpuspawner.states import State

from .demands import demand
from .docker_client import FakeClient
from .docker_machine import FakeMachine
from .rows import HUB

#: The product's rule: after this many yields a spawn is refused.
MAX_YIELDS = 3


class Outrun(Exception):
    """Yielded too often."""


class FakeHub:
    """A hub on a FakeMachine.

    Attributes:
        machine, client, engine, pool: the parts, for a test to reach into.
    """

    def __init__(
        self,
        machine: FakeMachine,
        hub_id: str = HUB,
        *,
        cards: int = 4,
        in_database: Callable[[], Collection[str]] = frozenset,
        threads: int = 12,
        keep_ended: bool = False,
        **settings: Any,
    ) -> None:
        self.machine = machine
        self.client = FakeClient(machine)
        self.engine = Engine(
            lambda: self.client,
            threads=threads,
            inspect_timeout_seconds=0.05,
            unknown_retry_seconds=0.1,
            clock=lambda: machine.steady,
        )
        self.log = logging.getLogger(f"hub-{hub_id[:1]}")
        self.pool = GPUPool(
            self.engine,
            hub_id,
            in_database,
            keep_ended=keep_ended,
            log=self.log,
            **{"inventory": {"simulated": cards}, **settings},
        )
        self.image_id = str(machine.images["img"]["Id"])

    async def uuids(self) -> list[str]:
        return [d.uuid for d in (await self.pool.prober.latest(60)).devices]

    def labels(self, attempt: Attempt, **more: str) -> dict[str, str]:
        own = {
            "hub": self.pool.hub_id,
            "lease": attempt.lease,
            "image": self.image_id,
            "devices": ",".join(attempt.devices),
            "share": str(attempt.share),
            "user": attempt.owner[0],
            "server": attempt.owner[1],
            "profile": attempt.profile,
            **more,
        }
        return {f"gpuspawner.{key}": value for key, value in own.items()}

    def kwargs(self, attempt: Attempt) -> dict[str, Any]:
        """What is created for an attempt."""
        request = {
            "Driver": "nvidia",
            "DeviceIDs": list(attempt.devices),
            "Capabilities": [["gpu"]],
        }
        return {
            "image": "img",
            "name": f"jupyter-{attempt.owner[0]}-{attempt.lease[:8]}",
            "labels": self.labels(attempt),
            "host_config": {"DeviceRequests": [request] if attempt.devices else None},
        }

    async def reserve(
        self, user: str = "ada", server: str = "", *, count: int = 1, limit: int = 0, **asked: Any
    ) -> tuple[Attempt, Ticket]:
        attempt = await self.pool.reserve(demand(user, server, count=count, limit=limit, **asked))
        return attempt, self.pool.ticket(attempt)

    async def create(self, attempt: Attempt, ticket: Ticket) -> str:
        self.pool.attempts.move(attempt, State.CREATING)
        return str((await ticket.create(self.kwargs(attempt)))["Id"])

    async def go(self, attempt: Attempt, ticket: Ticket) -> str | None:
        """From reservation to a running server; None if it had to yield."""
        container_id = await self.create(attempt, ticket)
        if not await self.pool.look(attempt, container_id):
            return None
        self.pool.attempts.move(attempt, State.STARTING)
        await ticket.start()
        if not await self.pool.look_again(attempt, container_id):
            return None
        return container_id

    async def spawn(
        self, user: str = "ada", server: str = "", *, count: int = 1, limit: int = 0, **asked: Any
    ) -> tuple[Attempt, str]:
        """A whole spawn, as the product's spawner goes about it."""
        for _ in range(MAX_YIELDS):
            attempt, ticket = await self.reserve(user, server, count=count, limit=limit, **asked)
            try:
                container_id = await self.go(attempt, ticket)
            except BaseException:
                self.pool.give_up(attempt, ticket)
                raise
            if container_id is not None:
                self.pool.hold(attempt, ticket)
                return attempt, container_id
            self.pool.give_up(attempt, ticket, force=attempt.state is State.STARTING)
            await self.pool.ended(attempt, 120)
        raise Outrun

    async def stop(self, attempt: Attempt, container_id: str) -> None:
        self.pool.release(attempt.lease, container_id)
        assert await self.pool.released(attempt.lease, 120)

    async def clean(self) -> None:
        """One round of the cleaner, and the end of what it began."""
        await self.pool.cleaner.clean()
        await asyncio.gather(*self.pool.cleaner._removals.values())

    def close(self) -> None:
        """As at the end of the process: calls under way are finished, threads end."""
        self.engine.close(wait=True)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; a test whose condition never comes fails."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), 120)


async def in_thread(function: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, function)


def idle(hub: FakeHub) -> bool:
    """Nothing in flight, nothing being released."""
    return not len(hub.pool.attempts) and not hub.pool._releases


def left_by(owner: FakeHub, lease: str, state: str, **labels: str) -> str:
    attempt = Attempt(lease, (), Fraction(1), (labels.pop("user", "ada"), ""))
    return owner.machine.add(state=state, labels=owner.labels(attempt, **labels)).id
