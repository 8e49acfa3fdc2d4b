"""The one validator of everything a user sends: form, query string, REST body, stored options.

Whatever comes in, only two things come out: a :class:`Choice` made of what the admin wrote in
``profile_list`` and ``allowed_images``, or an :class:`~gpuspawner.errors.OptionsError`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import messages, replies
from .checks import Where, shown
from .errors import ForbiddenProfile, OptionsError
from .profile_options import PLACEHOLDER, ProfileOption, UnlistedChoice
from .profiles import Profile, ProfileList, default_profile

#: ``allowed_images`` after DockerSpawner's own validation: key → image, or ``"*"`` for any.
AllowedImages = Mapping[str, str] | Literal["*"] | None

#: Longest free text for an ``unlisted_choice``, and longest image name, in characters.
MAX_VALUE_CHARS = 255
_MAX_KEYS = 64

UNLISTED = "unlisted-choice"
UNLISTED_SUFFIX = f"--{UNLISTED}"
_LINK_PREFIX = "opt-"
_FORM_PREFIX = "profile-option-"
#: Form fields that are the hub's own, or help another form to its ``profile``.
_NOT_OURS = frozenset({"_xsrf", "select-profile"})
#: How jupyterhub-fancy-profiles' form says that the text counts.
_UNLISTED_TOO = "unlisted_choice"

_IMAGES_ALLOWED = "images by the name that users read, such as {'PyTorch': 'lab/torch:2026'}"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True)
class Choice:
    """What a user may have, after every check.

    Attributes:
        options: the same choice in its canonical form, to be stored as ``user_options``; parsing
            it again gives the same Choice.
        overrides: dicts of spawner traits, to be applied in this order.
        image: the image chosen from ``allowed_images``, None if none was.
    """

    profile: Profile
    options: Mapping[str, str]
    overrides: tuple[Mapping[str, Any], ...]
    image: str | None = None


def check_images(value: Any) -> AllowedImages:
    """What ``allowed_images`` says, after DockerSpawner's own reading of it.

    Raises:
        ConfigError: it is something else than images by name.
    """
    if value is None or (isinstance(value, str) and value == "*"):
        return value  # type: ignore[return-value]
    here = Where("allowed_images")
    here.mapping(value, _IMAGES_ALLOWED)
    for key, image in value.items():
        for text in (key, image):
            if not isinstance(text, str) or not text.strip() or not text.isprintable():
                raise here.error(
                    f"{shown(text)} is neither a name nor an image; use {_IMAGES_ALLOWED}"
                )
    return dict(value)


def brings_image(profile: Profile) -> bool:
    """True if the profile has images of its own: ``allowed_images`` is not offered with it.

    Its ``spawner_override`` sets the image, or one of its options does, or is called that.
    """
    overrides = [profile.override]
    for option in profile.options:
        overrides += [choice.override for choice in option.choices]
        if option.unlisted is not None:
            overrides.append(option.unlisted.override)
    return any(o.key == "image" for o in profile.options) or any("image" in o for o in overrides)


def options_from_form(
    formdata: Mapping[str, Any], *, own_images: Collection[str] = ()
) -> dict[str, str]:
    """``user_options`` from form data or a query string (each field a list of texts).

    Fields are ``profile``, ``profile-option-<slug>--<option>``, the same with
    ``--unlisted-choice`` for its free text, ``image``, and in links plainly ``<option>``. Fields
    of other profiles than the chosen one are left out, since a form sends them all. Nothing is
    checked against the profiles: :func:`parse_options` does that.

    Args:
        formdata: as the hub hands it over.
        own_images: slugs of profiles that bring their images. The form's list of images, sent
            with every profile, does not count with these. None of a link, where it was written.

    Raises:
        OptionsError: a field is repeated, is no text, or is an uploaded file.
    """
    fields: dict[str, str] = {}
    for field, values in formdata.items():
        if field in _NOT_OURS:
            continue
        # In links, options may be marked by a prefix; JupyterHub 6 takes it off itself, 5 does not.
        key = field.removeprefix(_LINK_PREFIX)
        if key in fields:
            raise _error(f"form field {messages.echo(key)} came twice", replies.not_one_text(key))
        fields[key] = _single(key, values)
    plain = {k: v for k, v in fields.items() if not k.startswith(_FORM_PREFIX)}
    slug = plain.get("profile")
    # The form's list is hidden there but sent; and its text field may have been left empty.
    if slug in own_images or plain.get("image") == "":
        plain.pop("image", None)
    if slug is None:
        if any(key.startswith(_FORM_PREFIX) for key in fields):
            raise _error("options came without a profile", replies.choose_profile())
        return plain
    prefix = f"{_FORM_PREFIX}{slug}--"
    own = {k[len(prefix) :]: v for k, v in fields.items() if k.startswith(prefix)}
    own = {
        k: UNLISTED if v == _UNLISTED_TOO and not k.endswith(UNLISTED_SUFFIX) else v
        for k, v in own.items()
    }
    # The form has one image list for all profiles; an option "image" of the profile stands before.
    asked = {key.removesuffix(UNLISTED_SUFFIX) for key in own}
    plain = {k: v for k, v in plain.items() if k not in asked}
    for key in [k for k in own if k.endswith(UNLISTED_SUFFIX)]:
        # The text field is always in the form; it counts only if it was chosen. A profile that
        # has nothing but the text field sends no choice beside it.
        if own.get(key.removesuffix(UNLISTED_SUFFIX), UNLISTED) != UNLISTED or not own[key]:
            del own[key]
    chosen = {k: v for k, v in own.items() if v != UNLISTED}
    missing = [k for k, v in own.items() if v == UNLISTED and k + UNLISTED_SUFFIX not in own]
    if missing:
        raise _error(f"option {missing[0]!r}: no text was given", replies.text_missing())
    return {**plain, **chosen}


def parse_options(
    user_options: Any,
    profiles: ProfileList,
    *,
    user: str,
    groups: Collection[str] = (),
    allowed_images: AllowedImages = None,
    hide_forbidden: bool = False,
) -> Choice:
    """Check what was sent and turn it into what will be started.

    Args:
        user_options: anything; None or empty is the user's default profile.
        profiles: what the admin offers.
        user: whose server it is (not who presses the button).
        groups: the groups that user is in.
        allowed_images: images that users may choose from, by key.
        hide_forbidden: users are not shown the profiles of other groups.

    Raises:
        ForbiddenProfile: the profile exists, but not for this user; or none is open to them.
        OptionsError: anything else that is not a valid choice. No other exception, whatever the
            input is.
    """
    sent = _plain_dict({} if user_options is None else user_options)
    profile = _profile(sent, profiles, user, groups, hide_forbidden)
    known = _keys(profile, allowed_images)
    for key in sent:
        if key not in known:
            raise _error(
                f"unknown option {messages.echo(key)}; profile {profile.slug!r} knows "
                f"{', '.join(known)}",
                replies.unknown_option(key, known),
            )
    options = {"profile": profile.slug}
    overrides = [profile.override]
    for option in profile.options:
        options.update(_answer(option, sent, overrides))
    image = None
    if "image" in sent and "image" not in options:
        options["image"], image = _image(sent["image"], allowed_images)
    return Choice(profile, options, tuple(o for o in overrides if o), image)


def _error(message: str, user_message: str) -> OptionsError:
    return OptionsError(message, user_message=user_message)


def _single(key: str, values: Any) -> str:
    if isinstance(values, str):
        return values
    if not isinstance(values, Sequence) or len(values) != 1 or not isinstance(values[0], str):
        raise _error(f"form field {messages.echo(key)} is not one text", replies.not_one_text(key))
    return values[0]


def _plain_dict(value: Any) -> dict[str, str]:
    """The options as text to text; refuses every other shape before anything looks inside."""
    if not isinstance(value, Mapping):
        raise _error(
            f"user_options is {messages.echo(value)}; allowed is a dict of text to text",
            replies.not_a_dict(),
        )
    if len(value) > _MAX_KEYS:
        raise _error(f"user_options has {len(value)} keys", replies.too_many_options())
    plain = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise _error(
                f"option {messages.echo(key)} is {messages.echo(text)}; allowed is one text",
                replies.not_one_text(key),
            )
        plain[key] = text
    return plain


def _profile(
    sent: Mapping[str, str],
    profiles: ProfileList,
    user: str,
    groups: Collection[str],
    hide_forbidden: bool,
) -> Profile:
    allowed = profiles.allowed(user, groups)
    if "profile" not in sent:
        default = default_profile(allowed)
        if default is None:
            raise ForbiddenProfile(
                f"no profile is open to {user!r} with groups {sorted(groups)}",
                user_message=messages.nothing_allowed(),
            )
        return default
    profile = profiles.get(sent["profile"])
    if profile is None:
        slugs = [p.slug for p in allowed]
        raise _error(
            f"unknown profile {messages.echo(sent['profile'])}; open to {user!r} are "
            f"{', '.join(slugs) or 'none'}",
            replies.unknown_profile(sent["profile"], slugs),
        )
    if profile not in allowed:
        # What no form shows them is not told by a guess either: it may have somebody's name in it.
        shown = profile.groups and not hide_forbidden
        raise ForbiddenProfile(
            f"profile {profile.slug!r} is not open to {user!r} with groups {sorted(groups)}",
            user_message=messages.forbidden(profile.display_name if shown else profile.slug),
        )
    return profile


def _keys(profile: Profile, allowed_images: AllowedImages) -> list[str]:
    keys = ["profile"]
    for option in profile.options:
        keys.append(option.key)
        if option.unlisted is not None:
            keys.append(option.key + UNLISTED_SUFFIX)
    if allowed_images and not brings_image(profile):
        keys.append("image")
    return keys


def _answer(
    option: ProfileOption, sent: Mapping[str, str], overrides: list[Mapping[str, Any]]
) -> dict[str, str]:
    """What the user chose for one option, or its default, as canonical options."""
    free_key = option.key + UNLISTED_SUFFIX
    if option.unlisted is not None and free_key in sent:
        if option.key in sent:
            raise _error(
                f"both {option.key!r} and {free_key!r} were sent; allowed is one of them",
                replies.both_given(option.display_name),
            )
        text = sent[free_key]
        _check_text(option, option.unlisted, text)
        overrides.append(_fill(option.unlisted.override, text))
        return {free_key: text}
    key = sent.get(option.key, option.default)
    choice = option.choice(key)
    if choice is None:
        if option.key not in sent:  # only a free text is asked for, and none was given
            return {}
        keys = [c.key for c in option.choices]
        raise _error(
            f"unknown choice {messages.echo(key)} for option {option.key!r}; allowed are "
            f"{', '.join(keys)}",
            replies.unknown_choice(key, option.display_name, keys),
        )
    overrides.append(choice.override)
    return {option.key: choice.key}


def _check_text(option: ProfileOption, unlisted: UnlistedChoice, text: str) -> None:
    # Braces are refused because DockerSpawner formats its templates (volume names, for one) with
    # the spawner at hand: "{…}" in a user's text could read what it likes.
    fits = text and len(text) <= MAX_VALUE_CHARS and text.isprintable()
    braces = "{" in text or "}" in text
    if fits and not braces and (unlisted.pattern is None or unlisted.pattern.fullmatch(text)):
        return
    wanted = unlisted.pattern.pattern if unlisted.pattern else "any printable text"
    raise _error(
        f"text {messages.echo(text)} for option {option.key!r} does not fit: {wanted}, at most "
        f"{MAX_VALUE_CHARS} characters, no braces",
        unlisted.message or replies.text_does_not_fit(text, option.display_name),
    )


def _fill(value: Any, text: str) -> Any:
    """The override with the user's text put in. ``str.format`` would let it reach attributes."""
    if isinstance(value, str):
        return value.replace(PLACEHOLDER, text)
    if isinstance(value, Mapping):
        return {key: _fill(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, text) for item in value]
    if isinstance(value, tuple):
        return tuple(_fill(item, text) for item in value)
    return value


def _image(key: str, allowed_images: AllowedImages) -> tuple[str, str]:
    """The key as sent, and the image it stands for."""
    if allowed_images == "*":
        if len(key) > MAX_VALUE_CHARS or not _IMAGE.fullmatch(key):
            raise _error(f"{messages.echo(key)} is not the name of an image", replies.bad_image())
        return key, key
    images = allowed_images or {}
    if key not in images:
        raise _error(
            f"image {messages.echo(key)} is not in allowed_images: {', '.join(images)}",
            replies.unknown_choice(key, "image", list(images)),
        )
    return key, images[key]
