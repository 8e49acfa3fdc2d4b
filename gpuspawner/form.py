"""The spawn form: profiles with live counts, as a piece of HTML inside JupyterHub's own form.

Plain HTML that needs no script to be submitted; a script keeps the counts fresh while the page is
open. The field names are those that :func:`gpuspawner.options.options_from_form` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
)

from . import messages
from .form_state import Offers, ProfileState, preselected, sections
from .options import MAX_VALUE_CHARS, UNLISTED, UNLISTED_SUFFIX, AllowedImages, brings_image
from .profiles import Profile

#: The template's name, in our folder and in an admin's.
TEMPLATE = "gpuspawner_form.html"
#: Seconds between two looks of an open page.
REFRESH_SECONDS = 10


def render(
    offers: Offers,
    *,
    last: Mapping[str, Any] | None = None,
    images: AllowedImages = None,
    image: str = "",
    notice: str = "",
    live_url: str = "",
    always: bool = False,
    folders: Sequence[str] = (),
    template_vars: Mapping[str, Any] | None = None,
) -> str:
    """The form's HTML, or an empty text where there is nothing to choose.

    Args:
        offers: the profiles, and how they stand.
        last: the ``user_options`` of the last start, to be preselected where they still exist.
        images: what ``allowed_images`` allows.
        image: what is used when none is chosen: a key in ``images``, or an image itself.
        notice: a line of plain text above the profiles.
        live_url: where an open page asks how things stand; empty for a page that does not.
        always: render it also where there is nothing to choose.
        folders: where the admin may have put a template that extends ours.
        template_vars: more names for it.
    """
    profiles = offers.profiles
    own_image = [p.slug for p in profiles if brings_image(p)]
    several_images = (images == "*" or (images is not None and len(images) > 1)) and (
        len(own_image) < len(profiles)
    )
    one = len(profiles) == 1 and not profiles[0].options and not several_images
    if one and not always:
        return ""
    before: Mapping[str, Any] = last or {}
    last_slug = before.get("profile")
    states = {p.slug: offers.state(p.slug) for p in profiles}
    selected = preselected(profiles, states, last_slug if isinstance(last_slug, str) else None)
    listed = images if isinstance(images, Mapping) else {}
    image_key = image if image in listed else next((k for k in listed if listed[k] == image), image)
    # An image of the last profile's own is no choice from this list.
    last_image = None if last_slug in own_image else before.get("image")
    if isinstance(last_image, str) and (images == "*" or last_image in listed):
        image_key = last_image
    closed = ProfileState(disabled=messages.other_groups())
    known = {
        "profiles": profiles,
        "sections": sections(profiles, offers.others),
        "states": {**states, **{p.slug: closed for p in offers.others}},
        "others": [p.slug for p in offers.others],
        "selected": selected,
        "answers": {p.slug: answers_of(p, before if p.slug == last_slug else {}) for p in profiles},
        "images": list(listed) if several_images else [],
        "any_image": several_images and images == "*",
        "image": image_key,
        "own_image": own_image,
        "notice": notice,
        "live_url": live_url,
        "refresh_seconds": REFRESH_SECONDS,
        "words": messages,
        "unlisted": UNLISTED,
        "unlisted_suffix": UNLISTED_SUFFIX,
        "max_chars": MAX_VALUE_CHARS,
    }
    template = _environment(tuple(folders)).get_template(TEMPLATE)
    return template.render({**(template_vars or {}), **known})


def has_own_template(folders: Sequence[str]) -> bool:
    """True if an admin's folder has a template in place of ours."""
    return any((Path(folder) / TEMPLATE).is_file() for folder in folders)


def answers_of(profile: Profile, last: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
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


@lru_cache(maxsize=8)
def _environment(folders: tuple[str, ...]) -> Environment:
    """As JupyterHub finds its pages: the admin's first, ours also under ``templates/``."""
    ours = PackageLoader("gpuspawner", "templates")
    return Environment(
        loader=ChoiceLoader(
            [PrefixLoader({"templates": ours}), FileSystemLoader(list(folders)), ours]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
