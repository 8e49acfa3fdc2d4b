"""GPUSpawner: a DockerSpawner that gives every server GPUs of its own.

The parts, each in a file: settings (``spawner_traits``), what all share (``spawner_base``), whether
to start (``admission``), the way to a card (``launching``), a started server (``standing``), and
here the form and what a user sends through it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import quote

from jupyterhub.utils import url_path_join
from traitlets import default

from . import messages
from .demand import Scene
from .errors import ConfigError, EngineUnknown, GPUSpawnerError, OptionsError
from .form import TEMPLATE, has_own_template, render
from .form_state import Offers, ProfileState, shown_to_others, state_of
from .glance import Glance
from .kubespawner_form import render_foreign
from .memory import check_fraction
from .notices import notices_for
from .options import brings_image, options_from_form
from .pool import GPUPool
from .profiles import Profile
from .refusal import bad_list, refusal_from_error
from .standing import Standing

#: On the form where the GPUs don't exist.
SIMULATED = "These GPUs are simulated: servers start and stop as usual, but nothing computes."

#: Under the hub's prefix: where an open form asks how its profiles stand.
LIVE_PATH = "gpuspawner/profiles"
#: Key in the hub's settings of the look that the open forms share.
_GLANCE = "gpuspawner_glance"
#: The setting that a profile or a choice may have of its own.
_FRACTION = "memory_fraction"


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
        self.link_handler = weakref.ref(self.handler) if self.handler is not None else None
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

    # -- the form -------------------------------------------------------------------------------

    async def _form(self) -> str:
        """The spawn form with live counts; empty where there is nothing to choose."""
        try:
            await self.load_profiles()
            images = self._get_allowed_images()
        except ConfigError as error:
            self.log.warning("The form has no profiles: %s", error)
            return render(Offers(()), notice=messages.settings_refused())
        try:
            await self.pool.engine.connect()
            self.pool.prober.refresh()  # for the next decision; this one takes the last answer
            offers = self._offers(await _seen(self.pool))
        except GPUSpawnerError as error:
            self.log.warning("The form has no counts: %s", error)
            offers = self._offers_unseen(error)
        told = [
            f"{messages.name(n.server)}: {n.text}" if n.server else n.text
            for n in notices_for(self.user)
        ]
        lines = [*told, str(self.form_notice), SIMULATED if offers.simulated else ""]
        known: dict[str, Any] = {
            "last": self.last_options,
            "images": images,
            "image": str(self.image),
            "notice": " ".join(line for line in lines if line).strip(),
            "live_url": self._live_url,
            "always": self._after_link,
        }
        ours = render(offers, **known)
        foreign = list(self.additional_profile_form_template_paths)
        folders = [str(folder) for folder in self.user.settings.get("template_path") or ()]
        source = "the other's form.html" if foreign else TEMPLATE
        try:
            if foreign and ours and offers.profiles:
                return render_foreign(foreign, offers, last=self.last_options, images=images)
            if ours and has_own_template(folders):
                own = self._template_vars()
                return render(offers, **known, folders=folders, template_vars=own)
        except Exception:  # whatever another's template may raise
            self.log.exception("The form is gpuspawner's own, since %s failed", source)
        return ours

    @property
    def _after_link(self) -> bool:
        """True while the hub answers a link with options that was refused.

        It shows the form with the reason then; where there is no form, it would start something
        else without a word.
        """
        linked = self.link_handler() if self.link_handler is not None else None
        # The hub takes its handler back when a start has failed.
        return linked is not None and self.handler in (None, linked)

    async def live_form(self) -> dict[str, Any]:
        """How the profiles stand, for a form that is open; one look serves all that are.

        Raises:
            ConfigError: a callable's profiles can't be used.
        """
        settings, pool = self.user.settings, self.pool
        if not self.profiles.profiles:
            await self.load_profiles()  # the hub was restarted under the open page
        if _GLANCE not in settings:
            settings[_GLANCE] = Glance(lambda: _seen(pool))
        try:
            offers = self._offers(await settings[_GLANCE].latest())
        except GPUSpawnerError as error:
            offers = self._offers_unseen(error)
        return offers.as_json((self.last_options or {}).get("profile"))

    @property
    def _allowed(self) -> tuple[Profile, ...]:
        return self.profiles.allowed(self.user.name, self.group_names)

    def _offers(self, seen: tuple[Scene, bool]) -> Offers:
        scene, simulated = seen
        allowed = self._allowed
        states = {p.slug: state_of(self.demand(p, self._told(p)), scene) for p in allowed}
        others = (
            () if self.hide_forbidden_profiles else shown_to_others(self.profiles.profiles, allowed)
        )
        return Offers(allowed, others, states, simulated)

    def _told(self, profile: Profile) -> Fraction:
        """The least part of its cards' memory that a start with the profile would be told of.

        What a callable would make is known at the start only.

        Raises:
            ConfigError: one is no fraction.
        """
        own = profile.override.get(_FRACTION, self.memory_fraction)
        choices = [c.override for option in profile.options for c in option.choices]
        written = [own, *(o[_FRACTION] for o in choices if _FRACTION in o)]
        return min(check_fraction(w if w is not None and not callable(w) else 1) for w in written)

    def _offers_unseen(self, error: GPUSpawnerError) -> Offers:
        """What there is while the engine or the driver can't be asked: unknown is busy."""
        # Nothing starts without the engine, with a GPU or without.
        away = isinstance(error, EngineUnknown)
        why = messages.engine_down() if away else messages.cards_unknown(cpu_available=True)
        allowed = self._allowed
        shut = ProfileState(disabled=why)
        return Offers(allowed, states={p.slug: shut for p in allowed if away or p.needs_gpu})

    @property
    def _live_url(self) -> str:
        """Where an open form asks; the page may lie under any prefix."""
        parts = [LIVE_PATH, self.user.escaped_name, *([quote(self.name)] if self.name else [])]
        return str(url_path_join(self.hub.base_url, *parts))

    def _template_vars(self) -> dict[str, Any]:
        """``c.JupyterHub.template_vars`` as the hub's pages have them."""
        found = dict(self.user.settings.get("template_vars") or {})
        viewer = getattr(self.handler, "current_user", None)
        return {key: value(viewer) if callable(value) else value for key, value in found.items()}


async def _seen(pool: GPUPool) -> tuple[Scene, bool]:
    """The cards as they stand, and whether they are simulated.

    Raises:
        EngineUnknown, ProbeError: one of them can't be asked.
    """
    await pool.engine.connect()
    pool.start_cleaner()
    view = await pool.renewed_view(await pool.view())
    return pool.scene(view), view.inventory.source == "simulated"
