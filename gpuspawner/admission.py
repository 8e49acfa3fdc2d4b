"""Before a start: who may have what, is there room, is the image here.

It runs in ``run_pre_spawn_hook``, before the admin's own hook and outside ``start_timeout``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from docker.errors import APIError
from jupyterhub import orm

from . import faults, limit_words, messages, names, replies, shortage_words
from .connection import NO_ANSWER
from .demand import Demand
from .doors import options_were_sent
from .errors import ConfigError, EngineUnknown, GPUSpawnerError, OptionsError, ProbeError
from .limits import limits_for, most_per_user
from .memory import check_fraction
from .options import UNLISTED_SUFFIX, Choice, parse_options
from .overrides import set_overrides
from .pool import NoRoom, OverQuota
from .profiles import Profile
from .pulls import PullError
from .refusal import GPURefusal, bad_list, refusal_from_error, refusal_from_fault
from .shortage_report import admin_shortage
from .spawner_base import SpawnerBase
from .waiting import within

#: How long a start waits for the end of the server that it follows.
SETTLE_SECONDS = 10.0


class Admission(SpawnerBase):
    """The part of the spawner that decides whether to start at all."""

    async def run_pre_spawn_hook(self) -> None:
        """Check, pull, then run the admin's hook; a change of image there is pulled too."""
        self._begun = True
        self._reset_progress()
        try:
            await self.admit()
            pulled = await self._pull()
            result = super().run_pre_spawn_hook()
            if inspect.isawaitable(result):
                await result
            if self.image != pulled:
                await self._pull()
        except asyncio.CancelledError:
            # A plain cancel here would have the hub show the server as "ready" for a second.
            raise self.refuse(
                GPURefusal(messages.cancelled(), reason="cancelled", status=409)
            ) from None

    async def admit(self) -> Choice:
        """Validate the options, apply the profile, and see whether there is room.

        Raises:
            GPURefusal: not now, or not this.
        """
        self.forget_time(told=True)
        before = self.last_options
        try:
            await self.load_profiles()
        except ConfigError as error:
            self._store_options(before or {})
            raise self.refuse(bad_list(error)) from None
        try:
            self.choice = choice = self._choose()
        except ConfigError as error:  # of the images
            self._store_options(before or {})
            raise self.refuse(bad_list(error)) from None
        try:
            image = ({"image": choice.image},) if choice.image else ()
            await set_overrides(self, (*choice.overrides, *image), self.before_profile)
        except ConfigError as error:
            self.last_options = before
            self._store_options(before or {})
            raise self.refuse(_misfit(choice, error)) from None
        try:
            await self.pool.engine.connect()
            self.pool.start_cleaner()
            await self.pool.settle(self.owner(), SETTLE_SECONDS)
            await self.pool.check(self.demand(choice.profile))
        except GPUSpawnerError as error:
            raise self.refuse(self.refusal_for(error)) from None
        return choice

    def demand(self, profile: Profile, memory_fraction: object = None) -> Demand:
        """What a start of this server with a profile asks of the pool.

        Args:
            memory_fraction: that it would have, if not the one that is set now.

        Raises:
            ConfigError: it is no fraction.
        """
        told = self.memory_fraction if memory_fraction is None else memory_fraction
        part = Fraction(1) if told is None else check_fraction(told)
        most = most_per_user(self.max_gpus_per_user, self.group_names)
        return Demand(
            user=self.user.name,
            server=self.name,
            profile=profile.slug,
            requests=tuple(replace(request, told=part) for request in profile.requests),
            groups=self.group_names,
            limits=limits_for(
                self.user.name,
                most=most,
                groups=self._limited_groups(),
                profile=profile.slug,
                profile_name=profile.display_name,
                profile_most=profile.max_gpus,
                profile_servers=profile.max_servers_per_user,
            ),
            max_seconds=profile.max_seconds,
        )

    def _limited_groups(self) -> list[tuple[str, int, frozenset[str]]]:
        """The user's groups that have a limit: name, most GPUs, names of all members."""
        limited = [g for g in self.user.groups if g.name in self.max_gpus_per_group]
        return [
            (group.name, self.max_gpus_per_group[group.name], self._members(group))
            for group in limited
        ]

    def _members(self, group: Any) -> frozenset[str]:
        # Asked afresh: what the session remembers of a group may still have a deleted user in it.
        users = self.user.db.query(orm.User.name).join(orm.User.groups)
        return frozenset(name for (name,) in users.filter(orm.Group.id == group.id))

    def forget_time(self, *, told: bool = False) -> None:
        """No server runs any more; see ``Timing``."""
        raise NotImplementedError

    def _choose(self) -> Choice:
        """One validator for whatever door the options came through."""
        try:
            choice = self._checked(self.user_options)
        except OptionsError as error:
            try:
                choice = self._what_stands(error)
            except OptionsError as refused:
                # The hub has stored the bad options already; put the last good ones back.
                self._store_options(self.last_options or {})
                raise self.refuse(refusal_from_error(refused)) from None
        self.last_options = dict(choice.options)
        self._store_options(self.last_options)
        return choice

    def _checked(self, options: Any) -> Choice:
        return parse_options(
            options,
            self.profiles,
            user=self.user.name,
            groups=self.group_names,
            allowed_images=self._get_allowed_images(),
            hide_forbidden=self.hide_forbidden_profiles,
        )

    def _what_stands(self, error: OptionsError) -> Choice:
        """What is left of the last choice, where it can't be had any more and nothing was sent.

        The profile with its defaults, else the default profile: a user whom nobody showed a form
        would be locked out by a choice that they can't take back.

        Raises:
            OptionsError: the choice was sent just now, or nothing else can be had.
        """
        last = self.user_options
        sent = options_were_sent(last, self.handler, self.from_page)
        if sent or not last or last != self.last_options:
            raise error
        try:
            choice = self._checked({"profile": last.get("profile", "")})
        except OptionsError:
            choice = self._checked({})
        self.log.info("The last choice of %s can't be had any more: %s", self._log_name, error)
        started = messages.name(choice.profile.display_name)
        self.tell(5, f"Your last choice is not offered any more. Starting {started}.")
        return choice

    def _store_options(self, options: Mapping[str, str]) -> None:
        self.user_options = dict(options)
        # Mostly the hub has stored the same already, and a commit is the dearest part of a refusal.
        if self.orm_spawner.user_options != options:
            self.orm_spawner.user_options = dict(options)
            self.user.db.commit()

    def refusal_for(self, error: Exception) -> GPURefusal:
        """The refusal that a core error or an engine's answer turns into."""
        cpu = any(not p.needs_gpu for p in self.profiles.allowed(self.user.name, self.group_names))
        if isinstance(error, NoRoom):
            return GPURefusal(
                shortage_words.none_free(error.shortage, cpu_available=cpu),
                reason=names.REASON_NO_FREE_GPU,
                status=503,
                admin_message=admin_shortage(error.shortage, error.cards),
            )
        if isinstance(error, OverQuota):
            return GPURefusal(
                limit_words.refused(error.over, cpu_available=cpu),
                reason=names.REASON_QUOTA,
                status=403,
                admin_message=str(error),
            )
        if isinstance(error, ProbeError):
            return GPURefusal(
                messages.cards_unknown(cpu_available=cpu),
                reason=names.REASON_ENGINE,
                status=503,
                admin_message=str(error),
            )
        if isinstance(error, EngineUnknown):
            return GPURefusal(
                error.user_message or messages.engine_down(),
                reason=names.REASON_ENGINE,
                status=503,
                admin_message=str(error),
            )
        return refusal_from_error(error)

    def refusal_for_answer(self, error: Exception) -> GPURefusal:
        """The refusal for an error of the engine's own, in short words for the user."""
        status = error.status_code if isinstance(error, APIError) else None
        if isinstance(error, PullError):
            status = 500
        text = str(getattr(error, "explanation", None) or error)
        offers = self.pool.prober.cuda_version
        return refusal_from_fault(
            faults.engine_fault(status, text, image=self.image_name, offers=offers)
        )

    @property
    def image_name(self) -> str:
        """What the user knows the image as: its key in ``allowed_images``, else the image."""
        chosen = self.choice.options.get("image") if self.choice and self.choice.image else None
        return chosen or str(self.image)

    async def _pull(self) -> str:
        """Have the image on the engine, before any GPU is taken.

        Returns:
            The image that was asked for.
        """
        image = str(self.image)
        self.tell(10, "Checking the image")
        try:
            await within(self.pull_image(image), self.pull_timeout)
        except asyncio.TimeoutError:
            raise self.refuse(
                GPURefusal(
                    messages.image_slow(self.image_name),
                    reason=names.REASON_IMAGE,
                    status=503,
                    admin_message=(
                        f"pulling {image!r} took longer than GPUSpawner.pull_timeout = "
                        f"{self.pull_timeout:g} s; pull it on the machine, or raise the limit"
                    ),
                )
            ) from None
        except (PullError, *NO_ANSWER) as error:
            raise self.refuse(self.refusal_for_answer(error)) from None
        return image


def _misfit(choice: Choice, error: Exception) -> GPURefusal:
    """The refusal for a value that the spawner's setting does not take."""
    texts = {k: v for k, v in choice.options.items() if k.endswith(UNLISTED_SUFFIX)}
    admin = f"profile {choice.profile.slug!r}: {error}"
    if not texts:
        return GPURefusal(
            messages.settings_refused(), reason=names.REASON_OPTIONS, admin_message=admin
        )
    key, text = next(iter(texts.items()))
    return GPURefusal(
        replies.text_does_not_fit(text, key.removesuffix(UNLISTED_SUFFIX)),
        reason=names.REASON_OPTIONS,
        status=400,
        admin_message=f"{admin}; a validation_regex would tell the user what is allowed",
    )
