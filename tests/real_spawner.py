"""The real spawner under JupyterHub's own ``User``, in this process: no HTTP, no proxy, no wait.

:class:`RealHub` does what the hub's handlers do around ``User.spawn`` and ``User.stop``, with a
database in memory or on disk. On a real engine (or an injector before one) give ``url``; on a fake
one, ``client``, which makes its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from jupyterhub import objects, orm, roles
from jupyterhub.auth import DummyAuthenticator
from jupyterhub.oauth.provider import make_provider
from jupyterhub.user import User
from traitlets.config import Config

from fakes.rows import HUB
from gpuspawner.engine import Engine
from gpuspawner.pool import GPUPool
from gpuspawner.spawner import GPUSpawner
from gpuspawner.wiring import SETTING, containers_in_database, pool_options
from ground.machine import PATIENCE_SECONDS, NotInTimeError

#: What a start asks for, by default.
ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}


class RealUser(User):  # type: ignore[misc]
    """JupyterHub's user; on a fake engine no server answers, so none is waited for."""

    async def _wait_up(self, spawner: Any) -> Any:
        if self.settings["servers_answer"]:
            return await super()._wait_up(spawner)
        spawner._start_pending = False
        return spawner


class RealHub:
    """One hub process; :meth:`restart` makes it another one on the same database.

    Attributes:
        config: as in ``jupyterhub_config.py``; changes count for spawners made later.
        settings: the hub's, with its one pool.
    """

    def __init__(
        self,
        folder: Path,
        *,
        url: str = "",
        client: Callable[[], Any] | None = None,
        image: str = "img",
        hub_id: str = HUB,
        engine: Mapping[str, Any] | None = None,
        database: str = "sqlite:///:memory:",
        **pool: Any,
    ) -> None:
        """Make it; from within a running event loop, close it there too.

        Args:
            folder: for the file of its id.
            url: of a real engine, whose servers are waited for.
            client: makes clients of a fake engine.
            image: of the servers.
            hub_id: its id.
            engine: arguments of the engine's edge, on a fake engine.
            database: its URL; one on disk can be opened by the next process.
            pool: settings of ``c.GPUPool``.
        """
        id_file = folder / f"id-{hub_id[:8]}"
        id_file.write_text(f"{hub_id}\n")
        id_file.chmod(0o600)
        self._hub_id, self._client, self._engine = hub_id, client, dict(engine or {})
        self.config = Config()
        self.config.GPUPool = Config(
            {"inventory": {"simulated": 4}, "hub_id_file": str(id_file), **pool}
        )
        self.config.GPUSpawner = Config(
            {
                "image": image,
                "pull_policy": "never" if url else "ifnotpresent",
                "remove": True,
                "poll_interval": 0,  # tests poll
                "network_name": "bridge",
                "use_internal_ip": True,
                "client_kwargs": {"base_url": url} if url else {},
            }
        )
        self.session = orm.new_session_factory(url=database)()
        for role in roles.get_default_roles():
            roles.create_role(self.session, role)
        self._hub = objects.Hub(ip="127.0.0.1", port=8081, base_url="/hub/")
        provider = make_provider(
            lambda: self.session, url_prefix="/hub/api/oauth2", login_url="/hub/login"
        )
        provider.add_client("jupyterhub", "secret", "/hub/oauth_callback", allowed_scopes=[])
        self._lasting = {
            "spawner_class": GPUSpawner,
            "config": self.config,
            "base_url": "/",
            "hub": self._hub,
            "oauth_provider": provider,
            "allow_named_servers": True,
            "internal_ssl": False,
            "servers_answer": bool(url),
        }
        self.settings: dict[str, Any] = {}
        self._users: dict[str, RealUser] = {}
        self._begin()

    def _begin(self) -> None:
        """What a hub process begins with: the database, and nothing in memory."""
        self._users = {}
        self.settings = {**self._lasting, "authenticator": DummyAuthenticator()}
        if self._client is not None:
            options = pool_options(self.config)
            self.settings[SETTING] = GPUPool(
                Engine(self._client, threads=options.engine_threads, **self._engine),
                self._hub_id,
                lambda: containers_in_database(self.session),
                config=self.config,
            )

    # -- what it has ----------------------------------------------------------------------------

    def user(self, name: str) -> RealUser:
        """JupyterHub's user, made if there is none."""
        if name not in self._users:
            found = orm.User.find(self.session, name)
            if found is None:
                found = orm.User(name=name)
                self.session.add(found)
                self.session.commit()
                roles.assign_default_roles(self.session, entity=found)
            self._users[name] = RealUser(found, self.settings)
        return self._users[name]

    def spawner(self, name: str, server: str = "") -> GPUSpawner:
        """The spawner object, as the hub's handlers get at it."""
        spawner: GPUSpawner = self.user(name).get_or_create_spawner(server, "")
        return spawner

    @property
    def pool(self) -> GPUPool:
        """The hub's one pool; on a real engine there is one once a spawner was used."""
        if SETTING not in self.settings:
            _ = self.spawner("admin").pool
        pool: GPUPool = self.settings[SETTING]
        return pool

    @property
    def idle(self) -> bool:
        """Nothing in flight, nothing being released."""
        return not len(self.pool.attempts) and not self.pool._releases

    # -- what its handlers do -------------------------------------------------------------------

    def begin_start(
        self,
        name: str,
        options: Mapping[str, str] | None = ONE,
        server: str = "",
        *,
        handler: Any = None,
    ) -> asyncio.Task[None]:
        """POST of a server: the task in which it starts, which the hub keeps too."""
        user, spawner = self.user(name), self.spawner(name, server)

        async def spawn() -> None:
            await user.spawn(server, options=options, handler=handler)

        spawner._spawn_pending = True
        task = spawner._spawn_future = asyncio.ensure_future(spawn())

        def ended(done: asyncio.Task[None]) -> None:
            if done.cancelled() or done.exception() is None:
                spawner._spawn_future = None
            spawner._spawn_pending = False

        task.add_done_callback(ended)
        return task

    async def start(
        self,
        name: str,
        options: Mapping[str, str] | None = ONE,
        server: str = "",
        *,
        handler: Any = None,
    ) -> GPUSpawner:
        """POST of a server, to its end.

        Raises:
            Exception: whatever the hub would show.
        """
        await self.begin_start(name, options, server, handler=handler)
        return self.spawner(name, server)

    async def stop(self, name: str, server: str = "") -> None:
        """DELETE of a server, also of one that is pending."""
        spawner: Any = self.spawner(name, server)
        if spawner.pending:
            if spawner._spawn_future:
                spawner._spawn_future.cancel()
                # The hub waits for a second, then stops it and may trip over a start that ends only
                # now. A busy machine may stall for so long; what never ends is a fault.
                _, stuck = await asyncio.wait([spawner._spawn_future], timeout=PATIENCE_SECONDS)
                if stuck:
                    raise NotInTimeError(f"the start of {name} does not end when it is cancelled")
        elif await spawner.poll() is not None:
            return
        await self.user(name).stop(server)

    async def poll(self, name: str, server: str = "") -> int | str | None:
        """One poll with its consequence: what has ended is cleared, as the hub does."""
        spawner: Any = self.spawner(name, server)
        status: int | str | None = await spawner.poll()
        if status is not None and spawner.server:
            await self.user(name).stop(server)
        return status

    # -- its end --------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL, as far as one process can play it: nothing of it goes on, nothing is told.

        Calls that are inside the engine's threads still end there.
        """
        for user in self._users.values():
            for spawner in user.spawners.values():
                spawner.stop_polling()
                if spawner._spawn_future and not spawner._spawn_future.done():
                    spawner._spawn_future.cancel()
        if SETTING in self.settings:
            for task in list(self.pool._tasks):
                task.cancel()
            self.pool._loop = None
            self.pool.engine.close()
        self.session.rollback()
        self.session.expire_all()

    async def restart(self) -> None:
        """Kill it and start it again: every server that the database has is asked for."""
        self.kill()
        await asyncio.sleep(0)
        self._begin()
        for row in self.session.query(orm.Spawner).filter(orm.Spawner.server != None):  # noqa: E711
            user, spawner = self.user(row.user.name), self.spawner(row.user.name, row.name)
            if await spawner.poll() is None:
                url, server = urlparse(await spawner.get_url()), row.server
                server.ip, server.port = url.hostname, url.port
                self.session.commit()
                await user._wait_up(spawner)
            else:
                await user.stop(row.name)

    def close(self) -> None:
        """The end of the test."""
        self.kill()
        database = self.session.get_bind()
        with contextlib.suppress(Exception):
            self.session.close()
        # Else the connection would be closed by whichever later test collects it.
        database.dispose()
