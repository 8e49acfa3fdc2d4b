"""What is put into a created container before it starts: the startup hook, a home to write to.

Both go through the engine's archive calls, not through the hub's disk: a hub in a container has no
such path on the host.
"""

from __future__ import annotations

from .calls import Ticket
from .hook import hook_archive
from .spawner_base import SpawnerBase


async def home_volume_is_fresh(spawner: SpawnerBase) -> bool:
    return False


async def furnish(
    spawner: SpawnerBase, ticket: Ticket, *, fresh_home: bool, with_hook: bool
) -> None:
    """Furnish a created container."""
    client = spawner.pool.engine.client
    if with_hook:
        await ticket.call(lambda: client.put_archive(spawner.object_id, "/", hook_archive()))
