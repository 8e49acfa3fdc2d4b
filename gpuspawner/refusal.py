"""The exception that tells a user why their server does not start, on JupyterHub 5 and 6.

Every door shows the same text and nothing else: form, pending page, progress stream, REST answer.
The cause for the admin travels beside it, as :attr:`GPURefusal.admin_message`; whoever raises a
refusal logs that.

JupyterHub 6 has ``SpawnException``, which is counted as a refusal, with its reason, and not as a
fault. JupyterHub 5 has not: there it is an ``HTTPError`` (429 for what is 503 on 6), and
:func:`shield_failure_count` keeps it from the counter that makes that hub exit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jupyterhub.spawner
from markupsafe import escape
from tornado.web import HTTPError

from . import messages, names, replies
from .errors import ConfigError, EngineUnknown, ForbiddenProfile, OptionsError, ProbeError
from .faults import EngineFault

#: True where the hub knows refusals (JupyterHub 6).
HAS_SPAWN_EXCEPTION = hasattr(jupyterhub.spawner, "SpawnException")
#: True where a refusal feeds the hub's limit on failures (JupyterHub 5).
COUNTED_AS_FAILURE = not HAS_SPAWN_EXCEPTION

if TYPE_CHECKING:

    class _Base(HTTPError):
        """Either base, as far as the types go."""

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

else:
    _Base = getattr(jupyterhub.spawner, "SpawnException", HTTPError)


class GPURefusal(_Base):
    """A start that is refused, in words for the user.

    Args:
        message: what the user reads, on every door. Plain text; escaped here for HTML.
        reason: one of the ``REASON_…`` of :mod:`gpuspawner.names`; a label in the hub's metrics.
        status: HTTP status; on JupyterHub 5 anything from 500 on becomes 429.
        admin_message: the cause, for the log only.
    """

    jupyterhub_message: str
    jupyterhub_html_message: str

    def __init__(
        self, message: str, *, reason: str, status: int = 503, admin_message: str = ""
    ) -> None:
        if HAS_SPAWN_EXCEPTION:
            super().__init__(message, reason=reason, status_code=status)
        else:
            super().__init__(status if status < 500 else 429, message, reason=reason)
        self.refusal_reason = reason
        self.jupyterhub_message = message
        # The hub puts this into the page as it is.
        self.jupyterhub_html_message = str(escape(message))
        self.admin_message = admin_message or message

    def get_message(self) -> str:
        """The text for the user; never the cause."""
        return self.jupyterhub_message

    def __str__(self) -> str:
        return self.jupyterhub_message


def refusal_from_error(error: Exception) -> GPURefusal:
    """The refusal for an error of the core; one that already is a refusal is given back.

    Errors that nobody foresaw become a plain "could not be started", with the cause in
    ``admin_message``.
    """
    if isinstance(error, GPURefusal):
        return error
    admin = str(error)
    user = getattr(error, "user_message", "")
    if isinstance(error, ForbiddenProfile):
        text = user or messages.nothing_allowed()
        return GPURefusal(text, reason=names.REASON_FORBIDDEN, status=403, admin_message=admin)
    if isinstance(error, OptionsError):
        text = user or replies.choose_profile()
        return GPURefusal(text, reason=names.REASON_OPTIONS, status=400, admin_message=admin)
    if isinstance(error, EngineUnknown):
        text = user or messages.engine_down()
        return GPURefusal(text, reason=names.REASON_ENGINE, admin_message=admin)
    if isinstance(error, ProbeError):
        text = user or messages.cards_unknown(cpu_available=False)
        return GPURefusal(text, reason=names.REASON_ENGINE, admin_message=admin)
    cause = f"{type(error).__name__}: {admin}"
    return GPURefusal(
        user or messages.start_failed(), reason=names.REASON_ENGINE, admin_message=cause
    )


def bad_list(error: ConfigError) -> GPURefusal:
    """The refusal where a user's list of profiles can't be used: the admin's to mend."""
    return GPURefusal(
        messages.settings_refused(), reason=names.REASON_OPTIONS, admin_message=str(error)
    )


def refusal_from_fault(fault: EngineFault) -> GPURefusal:
    """The refusal for a classified error of the container engine."""
    return GPURefusal(
        fault.user_message,
        reason=fault.reason,
        status=fault.status,
        admin_message=fault.admin_message,
    )


def shield_failure_count(spawner: Any) -> None:
    """Keep this spawn's refusal out of JupyterHub 5's count of consecutive failures.

    To be called before a :class:`GPURefusal` leaves the spawner. When the spawn's future ends,
    JupyterHub 5 adds one to ``settings["failure_count"]`` of its web application, and exits at
    the spawner's ``consecutive_failure_limit``. The limit is lifted on this spawner until then,
    so that a refusal can't be the last straw, and the one is taken off right after it was added.
    Taking it off beforehand would go wrong whenever a sibling's success sets the count to zero
    meanwhile.

    Does nothing on JupyterHub 6, or where the hub does not count (no request).
    """
    future = getattr(spawner, "_spawn_future", None)
    handler = getattr(spawner, "handler", None)
    if not COUNTED_AS_FAILURE or handler is None or future is None or future.done():
        return
    if getattr(spawner, "shielded_spawn", None) is future:
        return
    settings = handler.settings  # the dict that counts; spawner.user.settings is another one
    limit = spawner.consecutive_failure_limit
    spawner.shielded_spawn = future
    spawner.consecutive_failure_limit = 0

    # The hub's own callback was added when the future was made, so it runs before this one.
    def take_back(done: Any) -> None:
        spawner.shielded_spawn = None
        spawner.consecutive_failure_limit = limit
        if not done.cancelled() and isinstance(done.exception(), GPURefusal):
            settings["failure_count"] = max(0, settings.get("failure_count", 0) - 1)

    future.add_done_callback(take_back)
