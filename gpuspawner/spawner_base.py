"""What all parts of the spawner share: the pool, the current attempt, progress, refusing."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from .attempts import Attempt
from .calls import Ticket
from .errors import ConfigError
from .furnish import Home
from .identity import Identity
from .inside_watch import Watched
from .manifest import Image
from .options import AllowedImages, Choice, check_images
from .overrides import settable
from .pool import GPUPool
from .profile_options import Reading
from .profiles import DEFAULT_PROFILES, ProfileList, parse_profile_list
from .refusal import GPURefusal, shield_failure_count
from .sight import Asked
from .spawner_traits import SpawnerTraits
from .waiting import Wish, happens
from .wiring import pool_of


@dataclass
class Flight:
    """One attempt on its way, and what was found out for it.

    Attributes:
        home: as it was found before create; None until then.
        asked: of the engine at create, for the cards.
    """

    attempt: Attempt
    ticket: Ticket
    choice: Choice
    identity: Identity
    image: Image = field(default_factory=lambda: Image("", {}))
    home: Home | None = None
    with_hook: bool = False
    asked: Asked = field(default_factory=Asked)


class SpawnerBase(SpawnerTraits):
    """State of one server's spawner.

    Attributes:
        lease: of the container this spawner owns; empty if it owns none.
        devices: UUIDs of that container's GPUs.
        choice: what the user may have, from the last admission.
        max_seconds: how long the running server may run; None without a limit.
        watched: what looks into that container have found; None before the first.
        last_options: the last accepted ``user_options``; kept over stops and restarts.
        from_page: the ``user_options`` last read from a form or a link, not checked.
        link_handler: the hub's handler of the last link with options.
        before_profile: settings that the last choice changed, as they were before.
    """

    lease: str = ""
    devices: tuple[str, ...] = ()
    profile_slug: str = ""
    max_seconds: float | None = None
    choice: Choice | None = None
    last_options: dict[str, str] | None = None
    from_page: dict[str, str] | None = None
    link_handler: weakref.ref[Any] | None = None
    watched: Watched | None = None
    _profiles: ProfileList | None = None
    _read_from: object = None
    _warned: frozenset[str] = frozenset()  # what was said of lists that a callable made
    _flight: Flight | None = None
    _wish: Wish | None = None
    _begun = False  # a spawn began in this process: there is nothing of an earlier one to adopt

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.before_profile: dict[str, Any] = {}

    # -- the pool and its threads ---------------------------------------------------------------

    @property
    def pool(self) -> GPUPool:
        """The hub's one pool."""
        return pool_of(self)

    @property
    def client(self) -> Any:
        return self.pool.engine.client

    def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the engine in a thread of ours; DockerSpawner has one for all servers."""
        return self.pool.engine.call(method, *args, **kwargs)

    @property
    def _launching(self) -> bool:
        """A start is under way that the hub has not given up."""
        return self._wish is not None

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know about the GPU of this running server; for the hub's pages."""
        lost = self.watched.notice if self.watched is not None else ""
        told = self.pool.watch.alarms.notices(self.lease) if self.lease else ()
        return (*told, lost) if lost else told

    # -- profiles -------------------------------------------------------------------------------

    @property
    def profiles(self) -> ProfileList:
        """The profiles as they were last loaded; of a callable that was not asked yet, none.

        Raises:
            ConfigError: the list can't be used.
        """
        written = self.profile_list
        # A hook may have set another list for this user, by their groups for one.
        if not callable(written) and (self._profiles is None or written is not self._read_from):
            self._profiles, self._read_from = self._read_profiles(written), written
        return self._profiles or ProfileList(())

    async def load_profiles(self) -> ProfileList:
        """The profiles as the admin wrote them, else the built-in ones; a callable is asked afresh.

        Raises:
            ConfigError: the list can't be used, or the callable failed.
        """
        written = self.profile_list
        if not callable(written):
            return self.profiles
        try:
            made = written(self)
            if inspect.isawaitable(made):
                made = await made
        except Exception as error:
            self.log.exception("The callable in profile_list failed for %s", self._log_name)
            raise ConfigError(
                f"profile_list: the callable failed: {type(error).__name__}: {error}"
            ) from error
        self._profiles = loaded = self._read_profiles(made, may_be_empty=True)
        new = [text for text in loaded.warnings if text not in self._warned]
        for text in new:
            self.log.warning("Made for %s: %s", self._log_name, text)
        self._warned = self._warned.union(new)
        return loaded

    def _read_profiles(self, written: Any, *, may_be_empty: bool = False) -> ProfileList:
        return parse_profile_list(
            DEFAULT_PROFILES if written is None and not may_be_empty else written,
            reading=Reading(settable(type(self))),
            may_be_empty=may_be_empty,
        )

    def _get_allowed_images(self) -> AllowedImages:
        """The images that this user may choose from, by key.

        Raises:
            ConfigError: a callable fails, or what is allowed is not images.
        """
        try:
            return check_images(super()._get_allowed_images())
        except ConfigError:
            raise
        except Exception as error:  # an admin's callable
            raise ConfigError(f"allowed_images: {type(error).__name__}: {error}") from error

    def owner(self) -> tuple[str, str]:
        """(user, server) as the hub names them now; both may be renamed."""
        return (self.user.name, self.name)

    @property
    def group_names(self) -> frozenset[str]:
        return frozenset(group.name for group in self.user.groups)

    # -- telling --------------------------------------------------------------------------------

    def refuse(self, refusal: GPURefusal) -> GPURefusal:
        """Log the cause for the admin and hand the refusal back, to be raised."""
        self.log.warning(
            "Refusing server %s (%s): %s",
            self._log_name,
            refusal.refusal_reason,
            refusal.admin_message,
        )
        # Only hub 5 counts a refusal as a failure of the hub itself.
        shield_failure_count(self)
        return refusal

    def _reset_progress(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._event_added = asyncio.Event()

    def tell(self, progress: int, message: str) -> None:
        """Add an event to the progress page."""
        self._events.append({"progress": progress, "message": message})
        self._event_added.set()
        self._event_added = asyncio.Event()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Events of the spawn under way, from its beginning; ends with the spawn."""
        seen = 0
        while self._spawn_pending:
            added = self._event_added
            for event in self._events[seen:]:
                yield event
            seen = len(self._events)
            await happens(added, 1.0)
