"""Asks for a server's identity where the admin said: settings, ``auth_state``, or passwd."""

from __future__ import annotations

import asyncio
import inspect
import os
import pwd
from typing import Any

from .errors import ConfigError
from .identity import Identity, from_auth_state, from_passwd, resolve_identity
from .spawner_base import SpawnerBase


async def identity_of(spawner: SpawnerBase) -> Identity:
    """Who this server will run as.

    Raises:
        ConfigError: a value is wrong, missing, or root where root is not allowed.
    """
    source = spawner.identity_from
    values: dict[str, Any] = {
        "uid": await _value(spawner, spawner.uid),
        "gid": await _value(spawner, spawner.gid),
        "supplemental_gids": await _value(spawner, spawner.supplemental_gids),
        "user_name": spawner.nb_user,
        "home": spawner.home,
    }
    if source == "passwd":
        values.update(await asyncio.to_thread(_passwd_values, spawner.user.name))
    elif isinstance(source, dict) and set(source) == {"auth_state"}:
        values.update(from_auth_state(await spawner.user.get_auth_state(), source["auth_state"]))
    elif source:
        raise ConfigError(
            f"GPUSpawner.identity_from is {source!r}; use 'passwd', "
            "{'auth_state': {'uid': '<key>', 'gid': '<key>'}}, or leave it empty"
        )
    return resolve_identity(
        **values,
        umask=spawner.nb_umask,
        allow_root=spawner.allow_root,
        drop_from_root=spawner.drop_from_root,
        source=source if isinstance(source, str) else "auth_state",
    )


async def _value(spawner: SpawnerBase, setting: Any) -> Any:
    value = setting(spawner) if callable(setting) else setting
    return await value if inspect.isawaitable(value) else value


def _passwd_values(name: str) -> dict[str, Any]:
    # In a thread: the host's passwd may be a directory service over the network.
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"GPUSpawner.identity_from is 'passwd', but the hub's host has no user {name!r}; "
            "create the user, or set uid and gid instead"
        ) from None
    return from_passwd(name, entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid))
