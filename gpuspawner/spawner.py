"""GPUSpawner: a DockerSpawner that gives every server GPUs of its own.

The parts, each in a file: settings (``spawner_traits``), what all share (``spawner_base``), whether
to start (``admission``), the way to a card (``launching``), a started server (``standing``), and
here the form and what a user sends through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traitlets import default

from . import messages
from .errors import ConfigError, EngineUnknown, GPUSpawnerError, OptionsError
from .form import ProfileState, render, state_of
from .notices import notices_for
from .options import brings_image, options_from_form
from .refusal import bad_list, refusal_from_error
from .standing import Standing

#: On the form where the GPUs don't exist.
SIMULATED = "These GPUs are simulated: servers start and stop as usual, but nothing computes."


class GPUSpawner(Standing):
    """Runs each user's server in a container of its own, with GPUs of its own.

    Everything of DockerSpawner works as before, but for what would give a container a GPU behind
    the pool's back. See the settings for what is added.
    """

    @default("options_form")
    def _default_options_form(self) -> Any:
        return GPUSpawner._form

    @default("options_from_form")
    def _default_options_from_form(self) -> Any:
        return self._read_form

    async def _read_form(self, formdata: Mapping[str, Any]) -> dict[str, str]:
        """Form fields; checked against the profiles when the server starts."""
        try:
            loaded = await self.load_profiles()
        except ConfigError as error:
            raise self.refuse(bad_list(error)) from None
        own_images = [p.slug for p in loaded.profiles if brings_image(p)]
        return self._read_page(formdata, own_images)

    def options_from_query(self, query_data: Mapping[str, Any]) -> dict[str, str]:
        """A link's query string; checked against the profiles when the server starts."""
        return self._read_page(query_data)

    def _read_page(
        self, fields: Mapping[str, Any], own_images: Sequence[str] = ()
    ) -> dict[str, str]:
        try:
            self.from_page = options_from_form(fields, own_images=own_images)
        except OptionsError as error:
            raise refusal_from_error(error) from None
        return self.from_page

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        # Options are applied at admission; this only tells the hub that they are handled.
        return GPUSpawner._leave_options

    def _leave_options(self, _options: Any) -> None:
        """Nothing to do here."""

    async def _form(self) -> str:
        """The spawn form with live counts; empty where there is nothing to choose."""
        try:
            loaded = await self.load_profiles()
        except ConfigError as error:
            self.log.warning("The form has no profiles: %s", error)
            return render((), {}, notice=messages.settings_refused())
        allowed = loaded.allowed(self.user.name, self.group_names)
        told = [
            f"{messages.name(n.server)}: {n.text}" if n.server else n.text
            for n in notices_for(self.user)
        ]
        notice = " ".join([*told, str(self.form_notice)]).strip()
        try:
            await self.pool.engine.connect()
            self.pool.start_cleaner()
            self.pool.prober.refresh()  # for the next decision; this one takes the last answer
            view = await self.pool.renewed_view(await self.pool.view())
        except EngineUnknown as error:
            self.log.warning("The form has no counts: %s", error)
            # Nothing starts without the engine, with a GPU or without.
            away = ProfileState(disabled=messages.engine_down())
            states = {p.slug: away for p in allowed}
        except GPUSpawnerError as error:
            self.log.warning("The form has no counts: %s", error)
            unknown = ProfileState(disabled=messages.cards_unknown(cpu_available=True))
            states = {p.slug: unknown for p in allowed if p.needs_gpu}
        else:
            scene = self.pool.scene(view)
            states = {p.slug: state_of(self.demand(p), scene) for p in allowed}
            if view.inventory.source == "simulated":
                notice = f"{notice} {SIMULATED}".strip()
        return render(
            allowed,
            states,
            last=self.last_options,
            images=self._get_allowed_images(),
            image=str(self.image),
            notice=notice,
        )
