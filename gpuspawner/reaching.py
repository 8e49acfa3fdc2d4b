"""Where a server is reached: its address may change while it runs, and its route goes with it.

After ``docker restart`` a container may have another address, and another container its old one.
The same with one that has ended and was not polled yet, when the next start gets its address. A
route that stayed would lead to somebody else's server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .claims import Row
from .connection import NO_ANSWER
from .errors import ConfigError, GPUSpawnerError, NoAddress
from .launching import Launching

#: Host of a server without an address; no name server ever knows it (RFC 2606).
NOWHERE = "unreachable.invalid"


class Reaching(Launching):
    """The part of the spawner that knows a server's address."""

    server: Any  # the hub's own: address in the database, None where nothing runs
    _followed: tuple[object, ...] = ()

    async def start(self) -> tuple[str, int]:
        """Start the server; see :meth:`Launching.start`.

        Returns:
            IP address and port at which the hub reaches it.
        """
        ip, port = await super().start()
        await self._oust(ip, port)
        return ip, port

    async def get_url(self) -> str:
        """Ask the engine, not the database: a hub killed in mid-start stored no address."""
        try:
            ip, port = await self.get_ip_and_port()
        except NoAddress:
            # The one in the database may be another server's by now; a poll finds the new one.
            ip, port = NOWHERE, self.port
        except (*NO_ANSWER, GPUSpawnerError, RuntimeError) as error:
            self.log.warning("Address of %s taken from the database: %s", self._log_name, error)
            return str(self.server.url) if self.server else ""
        proto = "https" if self.internal_ssl else "http"
        host = f"[{ip}]" if ":" in ip else ip
        base_url = self.server.base_url if self.server else "/"
        return f"{proto}://{host}:{port}{base_url}"

    async def follow(self, row: Row) -> None:
        """Have database and route lead to where the running server is now.

        The engine is asked only if its list shows something new.
        """
        shown = (row.id, row.name, row.endpoints)
        if shown == self._followed or not self._settled:
            return
        if row.name:
            # Where servers are reached by name, it is by the one that they have now.
            self.object_name = row.name
        try:
            ip, port = await self.get_ip_and_port()
        except (ConfigError, NoAddress, RuntimeError) as error:
            self.log.warning("Server %s has no address: %s", self._log_name, error)
            ip, port = NOWHERE, self.server.port if self.server else 0
        except Exception as error:  # noqa: BLE001 - also from an admin's own get_ip_and_port
            # Asked again at the next poll; the server is alive all the same.
            self.log.warning("Can't tell where %s is: %s", self._log_name, error)
            return
        if self.object_id != row.id or not self._settled:
            return
        self._followed = shown
        await self._move(ip, int(port))

    @property
    def _settled(self) -> bool:
        # Not ``ready``: the hub also calls a server pending while it asks whether it runs.
        return self.server is not None and self.pending in (None, "spawn")

    async def _move(self, ip: str, port: int) -> None:
        if self.is_at(ip, port):
            return
        server = self.server
        was = f"{server.ip}:{server.port}"
        self.log.warning("Server %s is at %s:%s now, not %s", self._log_name, ip, port, was)
        server.ip, server.port = ip, port
        self.user.db.commit()
        await self._oust(ip, port)
        await self._route()

    async def _route(self) -> None:
        """Have the proxy lead to the address in the database."""
        if self._start_pending or self.user.spawners.get(self.name) is not self:
            return  # the hub adds it once the server answers
        try:
            await self.user.settings["proxy"].add_user(self.user, self.name)
        except Exception as error:  # noqa: BLE001 - whatever a proxy's interface may raise
            # The hub compares routes and database every now and then.
            self.log.warning("The route of %s could not be changed: %s", self._log_name, error)

    async def _oust(self, ip: str, port: int) -> None:
        """Whoever was at this address before, is there no more."""
        users: Mapping[object, Any] = self.user.settings.get("users") or {}
        spawners = [s for user in users.values() for s in user.spawners.values()]
        for other in spawners if ip != NOWHERE else ():
            if other is not self and isinstance(other, Reaching) and other.is_at(ip, port):
                await other.lose_address(port)

    def is_at(self, ip: str, port: int) -> bool:
        """True if this is the address in the database."""
        return bool(self.server) and (self.server.ip, self.server.port) == (ip, port)

    async def lose_address(self, port: int) -> None:
        """Another server is where this one was: no route to there, and see what became of it."""
        self._followed = ()
        await self._move(NOWHERE, port)
        self.pool.background(self.poll_and_notify())

    def get_network_ip(self, network_settings: Mapping[str, Any]) -> str:
        networks = network_settings["Networks"]
        if self.network_name not in networks:
            raise ConfigError(
                f"GPUSpawner.network_name is {self.network_name!r}, but the container is on "
                f"{', '.join(networks) or 'none'}; set network_name instead of a network in "
                "extra_host_config. A container kept by remove = False stays on its old network: "
                "remove it"
            )
        address = str(networks[self.network_name]["IPAddress"])
        if not address:
            # The hub would take it for its own machine, and with it would not start.
            raise NoAddress(f"container {self.object_id[:12]} has no address: it does not run")
        return address
