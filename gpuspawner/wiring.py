"""Puts engine and pool together from what the hub and the admin's config say."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import docker
from docker.utils import kwargs_from_env
from traitlets.config import Config

from .connection import EngineClient, connections
from .engine import Engine
from .hubid import read_hub_id
from .pool import GPUPool
from .pool_traits import PoolTraits

#: Key in the hub's settings under which its one pool is kept.
SETTING = "gpuspawner_pool"
HUB_ID_FILE = "gpuspawner_hub_id"


def make_client(tls_config: dict[str, Any], client_kwargs: dict[str, Any], threads: int) -> Any:
    """A client as DockerSpawner would make it, wide enough for our threads.

    It asks the engine for its version, so call it in a thread.
    """
    kwargs: dict[str, Any] = {"version": "auto", "max_pool_size": connections(threads)}
    if tls_config:
        kwargs["tls"] = docker.tls.TLSConfig(**tls_config)
    kwargs.update(kwargs_from_env())
    kwargs.update(client_kwargs)
    return EngineClient(**kwargs)


def make_engine(
    tls_config: dict[str, Any],
    client_kwargs: dict[str, Any],
    *,
    threads: int,
    observers: Collection[str],
) -> Engine:
    """The engine's edge, not connected yet."""
    return Engine(
        lambda: make_client(tls_config, client_kwargs, threads),
        threads=threads,
        observers=observers,
        own_ids=own_container_ids(),
    )


def own_container_ids() -> tuple[str, ...]:
    """The id of the container this process runs in, if any: the hub itself holds no GPU."""
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ()
    # Docker binds the container's own hosts file from a folder named by its id.
    for line in text.splitlines():
        parts = line.split(" ")[3].split("/") if line.count(" ") > 3 else []
        if "containers" in parts and parts[-1] in ("hostname", "hosts", "resolv.conf"):
            identity = parts[parts.index("containers") + 1]
            if len(identity) == 64:
                return (identity,)
    return ()


def hub_id_path(configured: str, database_url: str) -> Path:
    """Where the hub's id is kept: as configured, else beside the database's file, else here."""
    if configured:
        return Path(configured)
    scheme, _, rest = database_url.partition("///")
    if scheme.startswith("sqlite") and rest and not rest.startswith(":"):
        return Path(rest.partition("?")[0]).resolve().parent / HUB_ID_FILE
    return Path.cwd() / HUB_ID_FILE


def pool_of(spawner: Any) -> GPUPool:
    """The hub's one pool, made when its first spawner asks for it, if not with the hub."""
    settings = spawner.user.settings
    if SETTING not in settings:
        settings[SETTING] = make_pool(spawner, spawner.user.db)
    pool: GPUPool = settings[SETTING]
    return pool


def pool_options(config: Config) -> PoolTraits:
    """The settings of ``c.GPUPool``, without a pool: some are needed to make its engine."""
    return PoolTraits(config=Config(PoolTraits=config.get("GPUPool", {})))


def make_pool(spawner: Any, session: Any) -> GPUPool:
    """A pool for the hub.

    Args:
        spawner: any of the hub's: how to reach the engine is the same for all.
        session: of the hub's database.

    Raises:
        ConfigError: the hub's id can't be read or kept.
    """
    options = pool_options(spawner.config)
    engine = make_engine(
        spawner.tls_config,
        spawner.client_kwargs,
        threads=options.engine_threads,
        observers=options.observers,
    )
    database_url = session.get_bind().url.render_as_string(hide_password=True)
    return GPUPool(
        engine,
        read_hub_id(hub_id_path(options.hub_id_file, database_url)),
        lambda: containers_in_database(session),
        keep_ended=not spawner.remove,
        config=spawner.config,
        log=spawner.log,
    )


def containers_in_database(session: Any) -> Collection[str]:
    """Container ids that the hub's database names as somebody's server.

    Of a server that was stopped the state may be there still, if the hub was killed just then.
    """
    from jupyterhub import orm

    # Whole rows: for the column alone SQLAlchemy warns, as the hub's JSON type has no cache key.
    rows = session.query(orm.Spawner).filter(orm.Spawner.server_id.is_not(None))
    states = [spawner.state for spawner in rows]
    return {str(state.get("object_id", "")) for state in states if state} - {""}
