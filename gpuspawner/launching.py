"""Reserve, create, look, start, look again: the way of one server to its card.

The container is the lease from the moment it is created. Whatever ends the way early (an error, a
timeout, a cancel at any ``await``), the attempt is given up: its container is removed in the thread
that made it, and its reservation ends when the engine has answered for that.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from docker.errors import APIError

from . import memory, messages, names
from .admission import Admission
from .attempts import Attempt, State
from .calls import Ticket
from .containment import ContainmentError, Policy, contain, grant
from .engine import NO_ANSWER
from .errors import GPUSpawnerError
from .furnish import Home, HomeRefused, find_home, furnish
from .identity import Identity
from .identity_sources import identity_of
from .placement import Shortage
from .pool import NoRoom
from .refusal import GPURefusal

#: After this many yields to rivals the server is refused.
MAX_YIELDS = 3
#: How long to wait for the removal of a container that yielded, before trying another card.
YIELD_SECONDS = 10.0


class Launching(Admission):
    """The part of the spawner that starts a server."""

    _identity: Identity | None = None
    _image_env: dict[str, str]
    _image_id = ""
    _home: Home | None = None
    _with_hook = False

    async def start(self) -> tuple[str, int]:
        """Start the server.

        Returns:
            IP address and port at which the hub reaches it.

        Raises:
            GPURefusal: not now, in words for the user.
        """
        self._launching = True
        try:
            return await self._start()
        except asyncio.CancelledError:
            # Without this an open progress page says "ready" of a server that was cancelled.
            self.server = None
            self.user.db.commit()
            raise
        except GPURefusal:
            raise
        except GPUSpawnerError as error:
            raise self.refuse(self.refusal_for(error)) from None
        except NO_ANSWER as error:
            raise self.refuse(self.refusal_for_answer(error)) from None
        finally:
            self._launching = False

    async def _start(self) -> tuple[str, int]:
        if self.choice is None:
            await self._admit()
        assert self.choice is not None
        request = self.choice.profile.request
        self._identity = await identity_of(self)
        resumed = await self._resume()
        if resumed is not None:
            return resumed
        for _ in range(MAX_YIELDS + 1):
            self.tell(30, "Looking for a free GPU" if request.count else "Creating your server")
            attempt = await self.pool.reserve(
                request, user=self.user.name, server=self.name, limit=self._limit
            )
            ticket = self.pool.ticket(attempt)
            self._attempt, self._ticket = attempt, ticket
            try:
                address = await self._launch(attempt, ticket)
            except BaseException:
                self._drop(attempt, ticket, force=True)
                raise
            if address is not None:
                self.pool.hold(attempt, ticket)
                self.lease, self.devices = attempt.lease, attempt.devices
                self.profile_slug = self.choice.profile.slug
                return address
            self._drop(attempt, ticket, force=attempt.state is State.STARTING)
            await self.pool.ended(attempt, YIELD_SECONDS)
        raise self._outrun()

    def _drop(self, attempt: Attempt, ticket: Ticket, *, force: bool) -> None:
        self.pool.give_up(attempt, ticket, force=force)
        self._attempt = self._ticket = None
        self.object_id = ""

    async def _resume(self) -> tuple[str, int] | None:
        """With ``remove = False``, start a stopped server without a GPU again (see Standing)."""
        return None

    def _outrun(self) -> GPURefusal:
        """Others were faster each time: as good as no card free."""
        assert self.choice is not None
        request = self.choice.profile.request
        shortage = Shortage(request, request.count, request.count, 0, 0, request.count, 0, 0)
        refusal = self.refusal_for(NoRoom(shortage, ()))
        refusal.admin_message = (
            f"other hubs or containers took the GPU first, {MAX_YIELDS + 1} times in a row"
        )
        return self.refuse(refusal)

    async def _launch(self, attempt: Attempt, ticket: Ticket) -> tuple[str, int] | None:
        """Create, look, start, look again.

        Returns:
            The server's address; None if the container had to yield.
        """
        await self._read_image()
        self.pool.attempts.move(attempt, State.CREATING)
        created = await self.create_object()
        self.object_id = created[self.object_id_key]
        assert self._identity is not None
        assert self._home is not None
        try:
            await furnish(
                self.client, ticket, self._identity, self._home, with_hook=self._with_hook
            )
        except HomeRefused as error:
            raise self.refuse(self._settings_refused(error, messages.home_refused())) from None
        self.tell(60, "Waiting for your turn" if attempt.devices else "Starting your server")
        if not await self.pool.look(attempt, self.object_id):
            return None
        self.pool.attempts.move(attempt, State.STARTING)
        self.tell(80, "Starting your server")
        await ticket.call(lambda: self.client.start(self.object_id))
        if not await self.pool.look_again(attempt, self.object_id):
            return None
        if self.post_start_cmd:
            await self.post_start_exec()
        address: tuple[str, int] = await self.get_ip_and_port()
        return address

    async def _read_image(self) -> None:
        image = await self.pool.engine.run(self.client.inspect_image, self.image)
        self._image_id = str(image["Id"])
        entries = (image.get("Config") or {}).get("Env") or ()
        self._image_env = dict(entry.partition("=")[::2] for entry in entries)

    # -- create: everything is merged at one seam -------------------------------------------------

    async def create_object(self) -> Any:
        """Create the container from DockerSpawner's and the admin's settings, then ours."""
        configured: Any = self.extra_host_config
        host_config = configured(self) if callable(configured) else configured
        if inspect.isawaitable(host_config):
            host_config = await host_config
        host_config = dict(host_config or {})
        if isinstance(host_config.get("device_requests"), tuple):
            # docker-py raises a TypeError on a tuple, before the seam could drop what is ours.
            host_config["device_requests"] = list(host_config["device_requests"])
        self.extra_host_config = host_config
        try:
            return await super().create_object()
        finally:
            self.extra_host_config = configured

    def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the engine in a thread; a create within a start passes through the seam."""
        if method == "create_container" and self._ticket is not None and self._launching:
            return self._create(self._ticket, kwargs)
        return super().docker(method, *args, **kwargs)

    async def _create(self, ticket: Ticket, kwargs: dict[str, Any]) -> dict[str, Any]:
        assert self._attempt is not None
        assert self._identity is not None
        final = await self._final_kwargs(self._attempt, kwargs)
        self._home = await self.pool.engine.run(find_home, self.client, final, self._identity)
        delay = 0.1
        while True:
            try:
                return await ticket.create(final)
            except APIError as error:
                if error.status_code != 409:
                    raise
            # The name is taken. By a listed container: take another name. By none: an older
            # create is still inside the engine and will appear or fail.
            listing = await self.pool.engine.listing()
            taken = f"/{final['name']}"
            if any(taken in row.names for row in listing.rows):
                final["name"] = f"{final['name']}-{ticket.lease[:8]}"
                self.object_name = final["name"]
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    async def _final_kwargs(self, attempt: Attempt, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The last word on a container: contained, with its labels, its cards and its budget."""
        assert self._identity is not None
        assert self.choice is not None
        admin_env = {k: v for k, v in self.environment.items() if v is not None}
        try:
            final, notes = contain(kwargs, self._policy())
        except ContainmentError as error:
            raise self.refuse(self._settings_refused(error, messages.settings_refused())) from None
        for note in notes:
            self.log.warning("%s: %s", self._log_name, note)
        driver = await self._driver(attempt)
        self._with_hook = self._wants_hook(attempt, final)
        final = grant(final, attempt.devices, driver, image_env=self._image_env)
        env: dict[str, Any] = dict(final.get("environment") or {})
        if attempt.devices:
            env.update(
                memory.framework_env(
                    self._fraction(attempt),
                    memory_mib=attempt.memory_mib,
                    image_env=self._image_env,
                    admin_env=admin_env,
                )
            )
            if self._with_hook:
                env.update(memory.hook_env(self._image_env, admin_env))
        final["environment"] = env
        final["labels"] = {**(final.get("labels") or {}), **self._labels(attempt)}
        return final

    def _policy(self) -> Policy:
        assert self._identity is not None
        return Policy(
            identity=self._identity,
            allow_root=self.allow_root,
            allow_privileged=self.allow_privileged,
            allow_devices=tuple(self.allow_devices),
            allow_capabilities=tuple(self.allow_capabilities),
            shm_size_bytes=int(self.shm_size or 0),
        )

    def _labels(self, attempt: Attempt) -> dict[str, str]:
        assert self.choice is not None
        return {
            names.LABEL_HUB: self.pool.hub_id,
            names.LABEL_LEASE: attempt.lease,
            names.LABEL_IMAGE: self._image_id,
            names.LABEL_USER: self.user.name,
            names.LABEL_SERVER: self.name,
            names.LABEL_PROFILE: self.choice.profile.slug,
            names.LABEL_DEVICES: ",".join(attempt.devices),
            names.LABEL_OPTIONS: json.dumps(dict(self.choice.options), sort_keys=True),
            names.LABEL_SHARE: str(attempt.share),
        }

    async def _driver(self, attempt: Attempt) -> str:
        """How the cards are put into the container: ``cdi``, ``nvidia`` or ``none``."""
        wanted = str(self.pool.device_driver)
        if wanted != "auto":
            return wanted
        known = (await self.pool.engine.info()).cdi_devices
        listed = all(f"nvidia.com/gpu={uuid}" in known for uuid in attempt.devices)
        return "cdi" if listed else "nvidia"

    def _fraction(self, attempt: Attempt) -> Fraction:
        if self.memory_fraction is None:
            return attempt.share
        return memory.check_fraction(self.memory_fraction)

    def _wants_hook(self, attempt: Attempt, final: Mapping[str, Any]) -> bool:
        if not attempt.devices or not memory.needs_hook(self._fraction(attempt)):
            return False
        if final["host_config"].get("ReadonlyRootfs"):
            self.log.warning(
                "%s: PyTorch will not be told its memory fraction, since the container's root is "
                "read-only (read_only in extra_host_config)",
                self._log_name,
            )
            return False
        return True

    def _settings_refused(self, error: ContainmentError, words: str) -> GPURefusal:
        return GPURefusal(words, reason=names.REASON_ENGINE, admin_message=str(error))
