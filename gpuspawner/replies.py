"""The words for a user who sent something that can't be had; same laws as ``messages``. Pure."""

from __future__ import annotations

from collections.abc import Collection

from .messages import ECHO_CHARS, NAME_WORDS, echo, name

_LISTED = 4


def _listed(allowed: Collection[str]) -> str:
    shown = [name(a) for a in list(allowed)[:_LISTED]]
    return ", ".join(shown) + (", …" if len(allowed) > _LISTED else "")


def _short(text: str) -> str:
    """:func:`echo` in few words, for a text that has a limit on them."""
    return echo(" ".join(text[: 2 * ECHO_CHARS].split(" ")[:NAME_WORDS]))


def _choose(allowed: Collection[str]) -> str:
    return f"You can choose from {_listed(allowed)}." if allowed else "There is nothing to choose."


def unknown_profile(slug: str, allowed: Collection[str]) -> str:
    """No such profile."""
    return f"There is no profile {_short(slug)}. {_choose(allowed)}"


def unknown_option(key: str, allowed: Collection[str]) -> str:
    """The profile has no such option."""
    return f"There is no option {_short(key)}. {_choose(allowed)}"


def unknown_choice(key: str, option: str, allowed: Collection[str]) -> str:
    """The option has no such choice."""
    return f"{name(option)} can't be {_short(key)}. {_choose(allowed)}"


def both_given(option: str) -> str:
    """A listed choice and a free text came for one option."""
    return f"{name(option)} was given twice. Please choose one, or write one."


def choose_profile() -> str:
    """Options came, but no profile."""
    return "Please choose a profile first, then its options."


def text_missing() -> str:
    """The free text was chosen, but left empty."""
    return "You chose to write your own answer, but left it empty. Please fill it in."


def text_does_not_fit(text: str, option: str) -> str:
    """The free text does not match what the admin allows."""
    return f"{_short(text)} does not fit {name(option)}. Please check it and try again."


def bad_image() -> str:
    """That can't be the name of an image."""
    return "That is not the name of an image. Please check it and try again."


def not_one_text(key: object) -> str:
    """A value is a list, a number, a file…."""
    shown = _short(key) if isinstance(key, str) else echo(key)
    return f"Option {shown} must be one text. Please check it and try again."


def not_a_dict() -> str:
    """The options are not a set of names and values."""
    return 'Options must be names with texts, such as {"profile": "cpu"}.'


def too_many_options() -> str:
    """Far more options than any profile has."""
    return "Too many options were sent. Please choose them on the form."
