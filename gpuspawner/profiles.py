"""Profiles: what an admin offers, read from ``profile_list`` and checked at the hub's start.

The schema is KubeSpawner's (``display_name``, ``slug``, ``description``, ``default``,
``profile_options`` with ``choices`` and ``unlisted_choice``), with ``spawner_override`` for plain
traits and ``gpu`` for what is asked of the pool. What users send is checked against these values
in :mod:`gpuspawner.options`.

Nothing is ignored: a key that is unknown, or whose part is not built yet, is an error that names
the entry, the field and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import Where, shown
from .gpu_requests import read_requests
from .profile_options import ProfileOption, Reading, read_options, read_override
from .request import Request

#: One rule for slugs: safe in URLs, labels and form keys. No ``--``, which parts form keys.
SLUG_RULE = "lowercase letters, digits and single dashes between them, at most 63 characters"
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SLUG_MAX_CHARS = 63

PROFILE_KEYS = (
    "display_name", "slug", "description", "default", "profile_options", "gpu", "groups", "users",
    "max_hours", "max_servers_per_user", "max_gpus", "spawner_override", "kubespawner_override",
)  # fmt: skip
LATER_PROFILE_KEYS = ("extend_hours", "idle_minutes", "wait_minutes", "priority")


@dataclass(frozen=True)
class Profile:
    """One entry of the list.

    Attributes:
        requests: what it asks of the pool, tried in order; the first that can be met counts.
            One with ``count`` 0 is a server without a GPU, and then the only one.
        default: the admin marked it as the default.
        groups, users: who may have it; None in both means everybody.
        override: plain spawner traits, applied before those of the options.
        max_hours: after which a server is stopped; None for never.
        max_servers_per_user: with this profile at a time; None for no limit.
        max_gpus: cards that all its servers may hold together; None for no limit.
    """

    slug: str
    display_name: str
    requests: tuple[Request, ...]
    description: str = ""
    default: bool = False
    options: tuple[ProfileOption, ...] = ()
    groups: frozenset[str] | None = None
    users: frozenset[str] | None = None
    override: Mapping[str, Any] = field(default_factory=dict)
    max_hours: float | None = None
    max_servers_per_user: int | None = None
    max_gpus: int | None = None

    @property
    def needs_gpu(self) -> bool:
        return any(r.count for r in self.requests)

    @property
    def max_seconds(self) -> float | None:
        """How long a server may run; None for ever."""
        return None if self.max_hours is None else self.max_hours * 3600

    def allows(self, user: str, groups: Collection[str]) -> bool:
        """True if this user, member of these groups, may have the profile."""
        if self.groups is None and self.users is None:
            return True
        return user in (self.users or ()) or not (self.groups or frozenset()).isdisjoint(groups)


@dataclass(frozen=True)
class ProfileList:
    """All profiles of a hub, in the admin's order.

    Attributes:
        warnings: for the log at the hub's start.
    """

    profiles: tuple[Profile, ...]
    warnings: tuple[str, ...] = ()

    def get(self, slug: str) -> Profile | None:
        """The profile of that slug, None if there is none."""
        return next((p for p in self.profiles if p.slug == slug), None)

    def allowed(self, user: str, groups: Collection[str]) -> tuple[Profile, ...]:
        """The profiles this user may have, in order; may be empty."""
        return tuple(p for p in self.profiles if p.allows(user, groups))


def default_profile(allowed: Collection[Profile]) -> Profile | None:
    """What is meant when nothing was chosen: the marked default, else one without a GPU, else the
    first; None if nothing is allowed.
    """
    marked = [p for p in allowed if p.default]
    without_gpu = [p for p in allowed if not p.needs_gpu]
    return next(iter(marked or without_gpu or allowed), None)


def slug_from(display_name: str) -> str:
    """A slug for a display name: ``"Half a GPU (A100)"`` gives ``half-a-gpu-a100``.

    Empty if the name has no ASCII letter or digit.
    """
    parts = re.findall(r"[a-z0-9]+", display_name.lower())
    return "-".join(parts)[:_SLUG_MAX_CHARS].rstrip("-")


def parse_profile_list(
    value: Any, *, reading: Reading | None = None, may_be_empty: bool = False
) -> ProfileList:
    """Read ``c.GPUSpawner.profile_list``, or what a callable there made for a user.

    Args:
        value: what the admin wrote, a list of dicts, or a dict of them (in the order of its keys,
            as KubeSpawner has it); :data:`DEFAULT_PROFILES` where they wrote nothing.
        reading: what is known of the spawner's traits; without it, overrides are not checked.
        may_be_empty: of one user, to whom nothing is open.

    Raises:
        ConfigError: naming the entry (by index and name), the field and what is allowed.
    """
    top = Where("profile_list")
    if not value and isinstance(value, (list, tuple, Mapping)) and not may_be_empty:
        raise top.error(
            "the list is empty, so nobody could start anything; add a profile, or remove the line "
            "for the built-in ones ('one-gpu' and 'cpu')"
        )
    reading = reading or Reading()
    profiles: list[Profile] = []
    for key, entry in _entries(top, value):
        where = top.entry(key, entry)
        profile = _profile(where, entry, reading)
        for index, other in enumerate(profiles):
            if other.slug == profile.slug:
                raise where.at("slug").error(
                    f"{profile.slug!r} is also the slug of entry {index} "
                    f"({shown(other.display_name)}); give one of them a 'slug' of its own"
                )
            if other.default and profile.default:
                raise where.at("default").error(
                    f"entry {index} ({shown(other.display_name)}) is the default already; "
                    "mark only one"
                )
        profiles.append(profile)
    return ProfileList(tuple(profiles), tuple(reading.warnings))


def _entries(top: Where, value: Any) -> list[tuple[object, Any]]:
    """The entries with their places."""
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if not isinstance(value, Mapping):
        raise top.wrong_type(value, "a list of profiles, each a dict")
    if "display_name" in value:
        raise top.error("this is one profile; write it into a list: [{…}]")
    for key in value:
        if not isinstance(key, str):
            raise top.error(f"{shown(key)} is a key of the dict; use texts, or write a list")
    return sorted(value.items())


def _profile(where: Where, entry: Any, reading: Reading) -> Profile:
    where.keys(entry, PROFILE_KEYS, later=LATER_PROFILE_KEYS)
    display_name = where.text(entry, "display_name")
    slug = where.text(entry, "slug", default="") or slug_from(display_name)
    if not slug:
        raise where.at("slug").error(
            f"no slug can be made from the display_name {display_name!r}; write one: {SLUG_RULE}"
        )
    if not _SLUG.fullmatch(slug) or len(slug) > _SLUG_MAX_CHARS:
        raise where.at("slug").error(f"{slug!r} is not a slug; use {SLUG_RULE}")
    reading.base = {}
    reading.base = override = read_override(where, entry, reading)
    return Profile(
        slug=slug,
        display_name=display_name,
        description=where.text(entry, "description", default="", empty=True),
        default=where.flag(entry, "default"),
        requests=(
            read_requests(where.at("gpu"), entry["gpu"], reading.warnings)
            if "gpu" in entry
            else (Request(count=0),)
        ),
        options=read_options(where.at("profile_options"), entry, reading),
        groups=where.names(entry, "groups"),
        users=where.names(entry, "users"),
        override=override,
        max_hours=where.above_zero(entry, "max_hours", "hours"),
        max_servers_per_user=where.whole(entry, "max_servers_per_user", "servers"),
        max_gpus=where.whole(entry, "max_gpus", "cards"),
    )


#: What a hub offers when ``profile_list`` is not set.
DEFAULT_PROFILES: tuple[Mapping[str, Any], ...] = (
    {
        "display_name": "One GPU",
        "slug": "one-gpu",
        "description": "A whole GPU for you alone.",
        "gpu": {"count": 1},
    },
    {
        "display_name": "Without a GPU",
        "slug": "cpu",
        "description": "For writing, reading and lighter work.",
    },
)
