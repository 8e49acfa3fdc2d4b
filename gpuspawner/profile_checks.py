"""Checks ``profile_list`` when the hub starts, down to the values of its overrides."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from traitlets import TraitError

from .checks import Where, shown
from .collisions import collisions
from .config_checks import STUMBLES, in_short, policy_of
from .config_sections import BadConfigError, Sections
from .errors import ConfigError
from .hostconfig import ContainmentError
from .limits import most_per_user
from .memory import check_fraction
from .overrides import set_override, settable
from .profile_options import Reading
from .profiles import DEFAULT_PROFILES, Profile, parse_profile_list
from .spawner import GPUSpawner


def check_profiles(sections: Sections, spawner: GPUSpawner, *, booked: bool = False) -> list[str]:
    """Check the list, unless a callable makes it for each user.

    Args:
        sections: the lines as the admin wrote them.
        spawner: a spawner of nobody's with the merged settings.
        booked: some GPUs are booked for groups at some hours.

    Returns:
        Warnings for the log.

    Raises:
        BadConfigError: naming the entry, the field and what is allowed.
    """
    written = spawner.profile_list
    line = sections.line("profile_list")
    if callable(written):
        _check_callable(written, line)
        return []
    traits = settable(sections.spawner_class)

    def try_override(where: Where, override: Mapping[str, Any], base: Mapping[str, Any]) -> None:
        if override:
            _try_override(sections.spawner(), where, override, base)

    try:
        profiles = parse_profile_list(
            DEFAULT_PROFILES if written is None else written,
            reading=Reading(traits, try_override),
        )
    except ConfigError as error:
        raise BadConfigError(_from_line(str(error), line)) from error
    beyond = [
        f"{line}: {profile.display_name!r} asks for {_least(profile)} GPUs, but "
        f"{sections.line(setting) if setting in traits else setting} is {value}, so nobody can "
        "start it; raise that"
        for profile in profiles.profiles
        for setting, value, most in _limits_of(profile, spawner)
        if most < _least(profile)
    ]
    endless = [p for p in profiles.profiles if p.needs_gpu and p.max_hours is None]
    if booked and endless:
        beyond.append(_never_booked(endless, line))
    return [*(_from_line(warning, line) for warning in profiles.warnings), *beyond]


def _never_booked(profiles: Sequence[Profile], line: str) -> str:
    """What follows where a server may run into any booking."""
    names = ", ".join(repr(p.display_name) for p in profiles)
    return (
        f"{line}: without max_hours a server may run into any booking, so members of other groups "
        f"never get a GPU of c.GPUPool.bookings for {names}; write how long a server may run there"
    )


def _limits_of(profile: Profile, spawner: GPUSpawner) -> Iterator[tuple[str, Any, int]]:
    """The limits that hold for everybody who may have a profile: setting, its value, most GPUs."""
    per_user, per_group = spawner.max_gpus_per_user, spawner.max_gpus_per_group
    if most := most_per_user(per_user, per_user if isinstance(per_user, dict) else ()):
        yield "max_gpus_per_user", per_user, most
    if profile.users is None and profile.groups and profile.groups <= set(per_group):
        yield "max_gpus_per_group", per_group, max(per_group[g] for g in profile.groups)
    if profile.max_gpus is not None:
        yield "its max_gpus", profile.max_gpus, profile.max_gpus


def _least(profile: Profile) -> Fraction:
    """The least number of cards that a profile may be met with."""
    return min(r.count * r.share for r in profile.requests)


def _from_line(text: str, line: str) -> str:
    return text.replace("profile_list", line, 1) if text.startswith("profile_list") else text


def _check_callable(made_by: Any, line: str) -> None:
    try:
        signature = inspect.signature(made_by)
    except (TypeError, ValueError):  # not told, of some built-in ones
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise BadConfigError(
            f"{line}: the callable is given one thing, the spawner, and returns the user's list "
            f"({error}); write: lambda spawner: [...]"
        ) from error


def _try_override(
    spawner: GPUSpawner, where: Where, override: Mapping[str, Any], base: Mapping[str, Any]
) -> None:
    """Set it on a spawner of nobody's, on top of the override of its profile.

    Raises:
        ConfigError: a value does not fit its setting, or would be refused at each start.
    """
    for key, value in base.items():
        if not callable(value):
            _set(spawner, where, key, value)
    for key, value in override.items():
        _set(spawner, where, key, value)
    try:
        policy = policy_of(spawner)
        if spawner.memory_fraction is not None:
            check_fraction(spawner.memory_fraction)
        found = [
            f"{where.at(key)}{place}: {instead}"
            for key, value in override.items()
            for place, instead in collisions(key, value, policy)
        ]
    except (ConfigError, ContainmentError) as error:
        raise where.error(str(error)) from error
    except STUMBLES as error:  # Docker's words, with values of another kind within
        raise where.error(
            f"it can't be used ({type(error).__name__}: {error}); see DockerSpawner's documentation"
        ) from error
    if found:
        raise ConfigError("\n".join(found))


def _set(spawner: GPUSpawner, where: Where, key: str, value: Any) -> None:
    # A setting of the admin's own subclass is not tried: making one may need a real user.
    if not spawner.has_trait(key):
        return
    try:
        set_override(spawner, key, value)
    except TraitError as error:
        raise where.at(key).error(in_short(error, key)) from error
    except STUMBLES as error:
        raise where.at(key).error(f"{shown(value)} can't be used here ({error})") from error
