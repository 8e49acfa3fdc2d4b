"""Begins the pool, and with it the cleaner, together with the hub; gives the open forms their page.

Without this it would begin when the first server or form asks for it, and what a killed hub left
would hold its GPUs until then.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from .errors import ConfigError
from .spawner import GPUSpawner
from .wiring import SETTING, make_pool


def install() -> None:
    """Have the hub of this process, if it is one, begin the pool when it starts.

    May be called twice.
    """
    # Only looked up: a command that reads the configuration need not import the hub for it.
    module = sys.modules.get("jupyterhub.app")
    if module is not None and module.JupyterHub.initialized():
        module.JupyterHub.instance().observe(_settings_made, "tornado_settings")


def _settings_made(change: Any) -> None:
    """The hub has made its settings, after opening its database and before loading its servers."""
    hub, settings = change.owner, change.new
    if settings.get("app") is not hub or SETTING in settings:
        return  # the admin's own, from the configuration
    if not (isinstance(hub.spawner_class, type) and issubclass(hub.spawner_class, GPUSpawner)):
        return  # a later line of the configuration replaced it
    # Late, since a command that reads the configuration needs no handlers. In place, since for a
    # new list the hub tells the admin to write a service instead, which could not ask our pool.
    from . import form_live

    form_live.add_to(hub.extra_handlers)
    try:
        # DockerSpawner renders the container's name, with the user's in it, as soon as it is made.
        nobody = SimpleNamespace(name="nobody", settings=settings, db=hub.db)
        spawner = hub.spawner_class(config=hub.config, user=nobody)
    except Exception as error:  # noqa: BLE001 - an admin's subclass may need all of a real user
        hub.log.warning(
            "The GPU pool begins with the first server: a spawner of nobody's can't be made "
            "(%s: %s)",
            type(error).__name__,
            error,
        )
        return
    try:
        pool = make_pool(spawner, hub.db)
    except ConfigError as error:
        # With another id every running server would be somebody else's.
        hub.log.critical("The GPU pool can't begin: %s", error)
        hub.exit(1)
        return
    settings[SETTING] = pool
    pool.start_cleaner()
