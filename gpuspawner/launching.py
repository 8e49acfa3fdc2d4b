"""Reserve, create, look, start, look again: the way of one server to its card.

The container is the lease from the moment it is created. Whatever ends the way early (an error, a
timeout, a cancel at any ``await``), the attempt is given up: its container is removed in the thread
that made it, and its reservation ends when the engine has answered for that.
"""

from __future__ import annotations

import asyncio
import inspect
from fractions import Fraction
from typing import Any

from docker.errors import APIError, InvalidArgument

from . import memory, messages, names, requirement
from .admission import Admission
from .attempts import Attempt
from .connection import NO_ANSWER
from .containment import ContainmentError, Policy
from .errors import GPUSpawnerError
from .furnish import HomeRefused, find_home, furnish
from .identity_sources import identity_of
from .manifest import Image, Manifest, Owner, build, read_image
from .options import Choice
from .pool import NoRoom
from .refusal import GPURefusal
from .request import Shortage
from .sight import read_asked
from .spawner_base import Flight
from .states import State
from .waiting import Wish, within

#: After this many yields to rivals the server is refused.
MAX_YIELDS = 3
#: How long before ``start_timeout`` a start that hangs is given up, in words.
HUB_MARGIN_SECONDS = 1.0
#: How long to wait for the removal of a container that yielded, before trying another card.
YIELD_SECONDS = 10.0


class Launching(Admission):
    """The part of the spawner that starts a server."""

    async def start(self) -> tuple[str, int]:
        """Start the server.

        Returns:
            IP address and port at which the hub reaches it.

        Raises:
            GPURefusal: not now, in words for the user.
        """
        wish = self._wish = Wish(self._spawn_future)
        try:
            choice = self.choice or await self.admit()
            address = await within(self._start(choice, wish), self._own_timeout_seconds)
            wish.check()
            return address
        except asyncio.TimeoutError:
            raise self.refuse(self._too_slow()) from None
        except asyncio.CancelledError:
            if self._wish is wish:
                # The cancel may have met a server that was just ready.
                self.let_go(stop=True)
                # Without this an open progress page says "ready" of a server that was cancelled.
                self.server = None
                self.user.db.commit()
            raise
        except HomeRefused as error:
            raise self.refuse(_settings_refused(error, messages.home_refused())) from None
        except ContainmentError as error:
            raise self.refuse(_settings_refused(error, messages.settings_refused())) from None
        except GPUSpawnerError as error:
            raise self.refuse(self.refusal_for(error)) from None
        except NO_ANSWER as error:
            raise self.refuse(self.refusal_for_answer(error)) from None
        finally:
            if self._wish is wish:
                self._wish = None

    @property
    def _own_timeout_seconds(self) -> float:
        """A little less than ``start_timeout``, at which the hub would cancel without a word."""
        limit = float(self.start_timeout)
        return max(limit - HUB_MARGIN_SECONDS, limit / 2)

    def _too_slow(self) -> GPURefusal:
        step = self._events[-1]["message"] if self._events else "begin"
        return GPURefusal(
            messages.start_slow(),
            reason="timeout",  # as the hub's own metric has it
            status=503,
            admin_message=(
                f"not started within GPUSpawner.start_timeout = {self.start_timeout} s; the last "
                f"step was {step!r}. Look at the engine's log, or raise the limit"
            ),
        )

    async def _start(self, choice: Choice, wish: Wish) -> tuple[str, int]:
        resumed = await self.resume(choice, wish)
        if resumed is not None:
            return resumed
        demand = self.demand(choice.profile)
        identity = await identity_of(self)
        for _ in range(MAX_YIELDS):
            self.tell(30, "Looking for a free GPU" if demand.needs_gpu else "Creating your server")
            attempt = await self.pool.reserve(demand)
            ticket = self.pool.ticket(attempt)
            flight = Flight(attempt, ticket, choice, identity)
            try:
                wish.check()
                self._flight = flight
                address = await self._launch(flight, wish)
                wish.check()
            except BaseException:
                self._drop(flight, force=True)
                # Given up meanwhile, it ends as a cancelled start does, whatever it stumbled over.
                wish.check()
                raise
            if address is not None:
                self._flight = None
                self.pool.hold(attempt, ticket, self.owner)
                self.lease, self.devices = attempt.lease, attempt.devices
                self.profile_slug = choice.profile.slug
                self.max_seconds = choice.profile.max_seconds
                return address
            self._drop(flight, force=attempt.state is State.STARTING)
            await self.pool.ended(attempt, YIELD_SECONDS)
        raise self._outrun(choice)

    def _drop(self, flight: Flight, *, force: bool) -> None:
        self.pool.give_up(flight.attempt, flight.ticket, force=force)
        if self._flight is flight:
            self._flight = None
            self.object_id = ""

    async def resume(self, choice: Choice, wish: Wish) -> tuple[str, int] | None:
        """Start a container kept by ``remove = False`` again; see ``Standing``."""
        raise NotImplementedError

    def let_go(self, *, stop: bool = False) -> None:
        """Own nothing any more; see ``Standing``."""
        raise NotImplementedError

    def _outrun(self, choice: Choice) -> GPURefusal:
        """Others were faster each time: as good as no card free."""
        request = choice.profile.requests[0]
        shortage = Shortage(request, request.count, request.count, 0, 0, request.count, 0, 0)
        refusal = self.refusal_for(NoRoom(shortage, ()))
        refusal.admin_message = (
            f"other hubs or containers took the GPU first, {MAX_YIELDS} times in a row"
        )
        return self.refuse(refusal)

    async def _launch(self, flight: Flight, wish: Wish) -> tuple[str, int] | None:
        """Create, look, start, look again.

        Returns:
            The server's address; None if the container had to yield.
        """
        attempt, ticket, pool = flight.attempt, flight.ticket, self.pool
        inspection = await pool.engine.call("inspect_image", self.image)
        flight.image = read_image(inspection)
        if attempt.devices:
            self._check_driver(flight.image)
        pool.attempts.move(attempt, State.CREATING)
        created = await self.create_object()
        wish.check()  # else this spawner may have another container by now
        self.object_id = created[self.object_id_key]
        if flight.home is not None:
            await furnish(
                pool.engine,
                ticket,
                flight.identity,
                flight.home,
                image_id=flight.image.id,
                with_hook=flight.with_hook,
            )
        await pool.proof.kept(ticket.container_id, flight.asked)
        self.tell(60, "Waiting for your turn" if attempt.devices else "Starting your server")
        if not await pool.look(attempt, self.object_id):
            return None
        pool.attempts.move(attempt, State.STARTING)
        self.tell(80, "Starting your server")
        await ticket.start()
        # Beside the rest of the start, and done before the user is told that it is ready.
        proof = asyncio.ensure_future(
            pool.proof.seen(ticket.container_id, attempt.devices, flight.asked)
        )
        proof.add_done_callback(lambda f: f.cancelled() or f.exception())
        try:
            if not await pool.look_again(attempt, self.object_id):
                return None
            if self.post_start_cmd:
                await self.post_start_exec()
            address: tuple[str, int] = await self.get_ip_and_port()
            await proof
        finally:
            proof.cancel()
        return address

    def _check_driver(self, image: Image) -> None:
        """Refuse an image that says it needs a newer driver; without a GPU it may still run."""
        offers, driver = self.pool.prober.cuda_version, self.pool.prober.driver_version
        env = {**image.env, **{k: v for k, v in self.environment.items() if v is not None}}
        needs = requirement.unmet(env, offers, driver)
        if needs is None:
            return
        raise self.refuse(
            GPURefusal(
                messages.image_too_new(str(self.image), needs, offers or ""),
                reason=names.REASON_IMAGE,
                status=503,
                admin_message=(
                    f"{self.image!r} has {requirement.REQUIRE}={env[requirement.REQUIRE]!r}; the "
                    f"driver is {driver} with CUDA {offers}. A newer driver or an image for an "
                    "older CUDA is needed; where you know that it runs all the same, have "
                    f"{requirement.DISABLE}=true in c.DockerSpawner.environment"
                ),
            )
        )

    # -- create: everything is merged at one seam -------------------------------------------------

    async def create_object(self) -> Any:
        """Create the container from DockerSpawner's and the admin's settings, then ours."""
        configured = self.extra_host_config
        host_config = configured(self) if callable(configured) else configured
        if inspect.isawaitable(host_config):
            host_config = await host_config
        host_config = dict(host_config or {})
        if isinstance(host_config.get("device_requests"), tuple):
            # docker-py raises a TypeError on a tuple, before the seam could drop what is ours.
            host_config["device_requests"] = list(host_config["device_requests"])
        self.extra_host_config: Any = host_config
        try:
            return await super().create_object()
        except (TypeError, ValueError, AttributeError, InvalidArgument) as error:
            # docker-py's own checks, or its stumbles, before anything is sent.
            self.log.debug("docker-py could not take the configuration", exc_info=True)
            raise ContainmentError(
                "extra_host_config or extra_create_kwargs can't be used: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            self.extra_host_config = configured

    def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the engine in a thread; a create within a start passes through the seam."""
        if method == "create_container" and self._flight is not None:
            return self._create(self._flight, kwargs)
        if method == "pull":
            self.tell(15, "Downloading the image, which can take some minutes")
            return self.pool.engine.pulls.pull(*args, **kwargs)
        return super().docker(method, *args, **kwargs)

    async def _create(self, flight: Flight, merged: dict[str, Any]) -> dict[str, Any]:
        manifest = await self._manifest(flight, merged)
        for note in manifest.notes:
            # Once for each setting, not for each of forty students' starts.
            if note not in self.pool.noted:
                self.pool.noted.add(note)
                self.log.warning("%s: %s", self._log_name, note)
        final = manifest.kwargs
        flight.asked = read_asked(final["host_config"])
        flight.with_hook = manifest.with_hook
        engine = self.pool.engine
        flight.home = await engine.run(find_home, engine, final, flight.identity, kind="inspect")
        delay = 0.1
        while True:
            try:
                return await flight.ticket.create(final)
            except APIError as error:
                if error.status_code != 409 or "in use" not in str(error.explanation):
                    raise
            # The name is taken. By a listed container: take another name. By none: an older
            # create is still inside the engine and will appear or fail.
            listing = await self.pool.engine.listing()
            taken = f"/{final['name']}"
            if any(taken in row.names for row in listing.rows):
                final["name"] = f"{final['name']}-{flight.ticket.lease[:8]}"
                self.object_name = final["name"]
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    async def _manifest(self, flight: Flight, merged: dict[str, Any]) -> Manifest:
        return build(
            merged,
            attempt=flight.attempt,
            owner=Owner(
                hub_id=self.pool.hub_id,
                user=self.user.name,
                server=self.name,
                profile=flight.choice.profile.slug,
                options=flight.choice.options,
                max_seconds=flight.choice.profile.max_seconds,
            ),
            image=flight.image,
            policy=Policy(
                identity=flight.identity,
                allow_root=self.allow_root,
                allow_privileged=self.allow_privileged,
                allow_devices=tuple(self.allow_devices),
                allow_capabilities=tuple(self.allow_capabilities),
                shm_size_bytes=int(self.shm_size or 0),
            ),
            driver=await self._driver(flight.attempt),
            fraction=self._fraction(flight.attempt),
        )

    async def _driver(self, attempt: Attempt) -> str:
        """How the cards are put into the container: ``cdi``, ``nvidia`` or ``none``."""
        wanted = str(self.pool.device_driver)
        if wanted != "auto":
            return wanted
        info = await self.pool.engine.info()
        known = info.cdi_devices
        listed = info.podman or all(f"nvidia.com/gpu={uuid}" in known for uuid in attempt.devices)
        return "cdi" if listed else "nvidia"

    def _fraction(self, attempt: Attempt) -> Fraction:
        if self.memory_fraction is None:
            return attempt.share
        return memory.check_fraction(self.memory_fraction)


def _settings_refused(error: ContainmentError, words: str) -> GPURefusal:
    return GPURefusal(words, reason=names.REASON_ENGINE, admin_message=str(error))
