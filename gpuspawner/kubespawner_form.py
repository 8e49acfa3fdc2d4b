"""A form that was made for KubeSpawner, jupyterhub-fancy-profiles' for one, in place of ours.

Such a ``form.html`` is given ``profile_list`` in KubeSpawner's schema and makes a form of it. It
gets words alone, never what a choice sets, and one that can't be chosen says so in its description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader

from .form import answers_of
from .form_state import Offers, ProfileState, preselected
from .options import UNLISTED, AllowedImages, brings_image
from .profile_options import ProfileOption
from .profiles import Profile

TEMPLATE = "form.html"
#: The question for ``allowed_images``; profiles that bring their images have an option of that key.
_IMAGE = "image"


def render_foreign(
    folders: Sequence[str],
    offers: Offers,
    *,
    last: Mapping[str, Any] | None = None,
    images: AllowedImages = None,
) -> str:
    """The other form's HTML.

    Args:
        folders: where its ``form.html`` is.
        offers: the profiles, and how they stand.
        last: the ``user_options`` of the last start, to be preselected.
        images: what ``allowed_images`` allows; a list of all the world's is not offered here.
    """
    template = _environment(tuple(folders)).get_template(TEMPLATE)
    return template.render(profile_list=kube_list(offers, last=last, images=images))


def kube_list(
    offers: Offers,
    *,
    last: Mapping[str, Any] | None = None,
    images: AllowedImages = None,
) -> list[dict[str, Any]]:
    """The profiles as KubeSpawner's templates read them."""
    before: Mapping[str, Any] = last or {}
    slug = before.get("profile")
    states = {p.slug: offers.state(p.slug) for p in offers.profiles}
    chosen = preselected(offers.profiles, states, slug if isinstance(slug, str) else None)
    listed = list(images) if isinstance(images, Mapping) else []
    found = []
    for profile in offers.profiles:
        answers = answers_of(profile, before if profile.slug == slug else {})
        options = {o.key: _option(o, answers[o.key][0]) for o in profile.options}
        if len(listed) > 1 and not brings_image(profile):
            options[_IMAGE] = _images(listed, before.get("image"))
        found.append(
            {
                "display_name": profile.display_name,
                "slug": profile.slug,
                "description": _description(profile, states[profile.slug]),
                "default": profile.slug == chosen,
                "profile_options": options,
            }
        )
    return found


def _description(profile: Profile, state: ProfileState) -> str:
    told = state.disabled or ". ".join(word for word in (state.gives, state.count) if word)
    return " ".join(f"{text.rstrip('.')}." for text in (profile.description, told) if text)


def _option(option: ProfileOption, answer: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "display_name": option.display_name,
        "choices": {
            c.key: {"display_name": c.display_name, "default": c.key == answer}
            for c in option.choices
        },
    }
    if option.unlisted is not None:
        pattern = option.unlisted.pattern.pattern if option.unlisted.pattern else ".+"
        found["unlisted_choice"] = {
            "enabled": True,
            "display_name": option.unlisted.display_name,
            "display_name_in_choices": option.unlisted.display_name_in_choices,
            "validation_regex": f"^(?:{pattern})$",
            "validation_message": option.unlisted.message or "This does not fit.",
        }
        if answer == UNLISTED and option.choices:
            # Such a form can't begin with a text; then with what the admin marked.
            found["choices"][option.default]["default"] = True
    return found


def _images(listed: Sequence[str], last: Any) -> dict[str, Any]:
    choices = {key: {"display_name": key, "default": key == last} for key in listed}
    return {"display_name": "Image", "choices": choices}


@lru_cache(maxsize=8)
def _environment(folders: tuple[str, ...]) -> Environment:
    return Environment(loader=FileSystemLoader(list(folders)), autoescape=True)
