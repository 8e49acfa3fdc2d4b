"""The spawn form: profiles with live counts, as a piece of HTML inside JupyterHub's own form.

Plain HTML that needs no script to be submitted. The field names are those that
:func:`gpuspawner.options.options_from_form` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from . import limit_words, messages
from .demand import Demand, Scene, decide, outlook
from .limits import OverLimit
from .options import MAX_VALUE_CHARS, UNLISTED, UNLISTED_SUFFIX, AllowedImages, brings_image
from .profiles import Profile, default_profile
from .request import Shortage


@dataclass(frozen=True)
class ProfileState:
    """What the form says about a profile just now.

    Attributes:
        free: cards that are free and fit; None leaves the count out.
        total: cards that fit, taken or not.
        disabled: why it can't be chosen, in words for users; empty if it can.
    """

    free: int | None = None
    total: int = 0
    disabled: str = ""

    @property
    def count(self) -> str:
        """``3 of 8 GPUs free``; empty where there is no count."""
        if self.free is None or not self.total:
            return ""
        return f"{self.free} of {messages.gpus(self.total)} free"


def state_of(demand: Demand, scene: Scene) -> ProfileState:
    """The state of a profile for one user just now; without a GPU it is always open."""
    found = decide(demand, scene)
    if isinstance(found, OverLimit):
        return ProfileState(disabled=limit_words.disabled(found))
    if not demand.needs_gpu:
        return ProfileState()
    suitable, free = outlook(demand, scene)
    return ProfileState(
        free=free,
        total=suitable,
        disabled=messages.disabled(found) if isinstance(found, Shortage) else "",
    )


def preselected(
    profiles: Sequence[Profile], states: Mapping[str, ProfileState], last: str | None
) -> str | None:
    """The slug that is chosen when the page opens: never one that is disabled.

    The last choice if it is free, else one without a GPU, else the first that is free. Whoever
    has not chosen before gets the admin's default if it is free. None if all are disabled.
    """
    open_now = [p for p in profiles if not states.get(p.slug, ProfileState()).disabled]
    if last is None:
        found = default_profile(open_now)
        return found.slug if found else None
    slugs = [p.slug for p in open_now]
    without_gpu = [p.slug for p in open_now if not p.needs_gpu]
    return next(iter([last] if last in slugs else without_gpu or slugs), None)


def render(
    profiles: Sequence[Profile],
    states: Mapping[str, ProfileState],
    *,
    last: Mapping[str, Any] | None = None,
    images: AllowedImages = None,
    image: str = "",
    notice: str = "",
) -> str:
    """The form's HTML, or an empty text where there is nothing to choose.

    Args:
        profiles: those the server's user may have, in order.
        states: by slug; a profile that is missing is open and shows no count.
        last: the ``user_options`` of the last start, to be preselected where they still exist.
        images: what ``allowed_images`` allows.
        image: what is used when none is chosen: a key in ``images``, or an image itself.
        notice: a line of plain text above the profiles.
    """
    own_image = [p.slug for p in profiles if brings_image(p)]
    several_images = (images == "*" or (images is not None and len(images) > 1)) and (
        len(own_image) < len(profiles)
    )
    if len(profiles) == 1 and not profiles[0].options and not several_images:
        return ""
    before: Mapping[str, Any] = last or {}
    last_slug = before.get("profile")
    selected = preselected(profiles, states, last_slug if isinstance(last_slug, str) else None)
    listed = images if isinstance(images, Mapping) else {}
    image_key = image if image in listed else next((k for k in listed if listed[k] == image), image)
    # An image of the last profile's own is no choice from this list.
    last_image = None if last_slug in own_image else before.get("image")
    if isinstance(last_image, str) and (images == "*" or last_image in listed):
        image_key = last_image
    return _template().render(
        profiles=profiles,
        states={p.slug: states.get(p.slug, ProfileState()) for p in profiles},
        selected=selected,
        answers={p.slug: _answers(p, before if p.slug == last_slug else {}) for p in profiles},
        images=list(listed) if several_images else [],
        any_image=several_images and images == "*",
        image=image_key,
        own_image=own_image,
        notice=notice,
        words=messages,
        unlisted=UNLISTED,
        unlisted_suffix=UNLISTED_SUFFIX,
        max_chars=MAX_VALUE_CHARS,
    )


def _answers(profile: Profile, last: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Per option: the choice to preselect, and the text to put into its free field."""
    answers = {}
    for option in profile.options:
        text = last.get(option.key + UNLISTED_SUFFIX)
        if option.unlisted is not None and isinstance(text, str):
            answers[option.key] = (UNLISTED, text)
            continue
        key = last.get(option.key)
        known = isinstance(key, str) and option.choice(key) is not None
        answers[option.key] = (str(key) if known else option.default, "")
    return answers


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("gpuspawner", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("options_form.html")
