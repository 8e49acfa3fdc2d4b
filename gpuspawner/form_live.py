"""What an open spawn form refreshes itself from: how the user's profiles stand, as JSON.

A page of the hub's own, read only, for whoever may open that form.
"""

from __future__ import annotations

from typing import Any

from jupyterhub.handlers import BaseHandler
from jupyterhub.scopes import needs_scope
from tornado import web

from .errors import ConfigError
from .spawner import LIVE_PATH, GPUSpawner

#: Under the hub's prefix: the user's name and, for a named server, the server's.
ROUTE = rf"/{LIVE_PATH}/([^/]+)(?:/([^/]+))?"


class FormLiveHandler(BaseHandler):
    """``GET /hub/gpuspawner/profiles/<user>[/<server>]``."""

    def get(self, user_name: str, server_name: str | None = None) -> Any:
        return self._get(user_name=user_name, server_name=server_name or "")

    # The form's own scope, and by the same arguments.
    @needs_scope("servers")
    async def _get(self, user_name: str, server_name: str) -> None:
        user = self.find_user(user_name)
        # Nothing is made here: the page that asks has put the server into the database.
        if user is None or server_name not in {*user.spawners, *user.orm_spawners}:
            raise web.HTTPError(404)
        spawner = user.spawners[server_name]
        if not isinstance(spawner, GPUSpawner):
            raise web.HTTPError(404)
        self.set_header("Cache-Control", "no-store")
        try:
            self.finish(await spawner.live_form())
        except ConfigError:
            raise web.HTTPError(404) from None  # told in the log; the next form will say so

    def write_error(self, status_code: int, **_kwargs: Any) -> None:
        """A number is all that the page needs."""
        self.set_header("Cache-Control", "no-store")
        self.finish({"status": status_code})

    def _record_activity(self, *_args: Any, **_kwargs: Any) -> bool:
        """A page that lies open is nobody at work."""
        return False


def add_to(handlers: list[Any]) -> None:
    """Add it to ``JupyterHub.extra_handlers``; may be called twice."""
    if not any(entry[0] == ROUTE for entry in handlers):
        handlers.append((ROUTE, FormLiveHandler))
