"""Profiles: what an admin offers, read from ``profile_list`` and checked at the hub's start.

The schema is KubeSpawner's (``display_name``, ``slug``, ``description``, ``default``,
``profile_options`` with ``choices`` and ``unlisted_choice``), with ``spawner_override`` for plain
traits and ``gpu`` for what is asked of the pool. What users send is checked against these values
in :mod:`gpuspawner.options`.

Nothing is ignored: a key that is unknown, or whose part is not built yet, is an error that names
the entry, the field and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .checks import Where
from .profile_options import ProfileOption, read_options, read_override
from .request import Request

MIB_PER_GIB = 1024

#: One rule for slugs: safe in URLs, labels and form keys. No ``--``, which parts form keys.
SLUG_RULE = "lowercase letters, digits and single dashes between them, at most 63 characters"
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SLUG_MAX_CHARS = 63

_PROFILE_KEYS = (
    "display_name", "slug", "description", "default", "profile_options", "gpu", "groups", "users",
    "max_hours", "max_servers_per_user", "max_gpus", "spawner_override", "kubespawner_override",
)  # fmt: skip
_LATER_PROFILE_KEYS = ("extend_hours", "idle_minutes", "wait_minutes", "priority")
_GPU_KEYS = ("count", "share", "min_memory_gib", "models")
_LATER_GPU_KEYS = ("mig_profile", "linked")


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


def parse_profile_list(value: Any, *, traits: Collection[str] | None = None) -> ProfileList:
    """Read ``c.GPUSpawner.profile_list``.

    Args:
        value: what the admin wrote, a list of dicts; :data:`DEFAULT_PROFILES` where they wrote
            nothing.
        traits: names that ``spawner_override`` may set; None skips that check.

    Raises:
        ConfigError: naming the entry (by index and name), the field and what is allowed.
    """
    top = Where("profile_list")
    if callable(value):
        raise top.error("a callable is not in this version; write a list of profiles")
    if not isinstance(value, (list, tuple)):
        raise top.wrong_type(value, "a list of profiles, each a dict")
    if not value:
        raise top.error(
            "the list is empty, so nobody could start anything; add a profile, or remove the line "
            "for the built-in ones ('one-gpu' and 'cpu')"
        )
    warnings: list[str] = []
    profiles: list[Profile] = []
    for index, entry in enumerate(value):
        profile = _profile(top.entry(index, entry), entry, traits, warnings)
        for other_index, other in enumerate(profiles):
            where = top.entry(index, entry)
            if other.slug == profile.slug:
                raise where.at("slug").error(
                    f"{profile.slug!r} is also the slug of entry {other_index} "
                    f"({other.display_name!r}); give one of them a 'slug' of its own"
                )
            if other.default and profile.default:
                raise where.at("default").error(
                    f"entry {other_index} ({other.display_name!r}) is the default already; "
                    "mark only one"
                )
        profiles.append(profile)
    return ProfileList(tuple(profiles), tuple(warnings))


def _profile(
    where: Where, entry: Any, traits: Collection[str] | None, warnings: list[str]
) -> Profile:
    where.keys(entry, _PROFILE_KEYS, later=_LATER_PROFILE_KEYS)
    display_name = where.text(entry, "display_name")
    slug = where.text(entry, "slug", default="") or slug_from(display_name)
    if not slug:
        raise where.at("slug").error(
            f"no slug can be made from the display_name {display_name!r}; write one: {SLUG_RULE}"
        )
    if not _SLUG.fullmatch(slug) or len(slug) > _SLUG_MAX_CHARS:
        raise where.at("slug").error(f"{slug!r} is not a slug; use {SLUG_RULE}")
    return Profile(
        slug=slug,
        display_name=display_name,
        description=where.text(entry, "description", default="", empty=True),
        default=where.flag(entry, "default"),
        requests=(_request(where.at("gpu"), entry["gpu"]) if "gpu" in entry else Request(count=0),),
        options=read_options(where.at("profile_options"), entry, traits, warnings),
        groups=where.names(entry, "groups"),
        users=where.names(entry, "users"),
        override=read_override(where, entry, traits, warnings),
        max_hours=where.above_zero(entry, "max_hours", "hours"),
        max_servers_per_user=where.whole(entry, "max_servers_per_user", "servers"),
        max_gpus=where.whole(entry, "max_gpus", "cards"),
    )


def _request(where: Where, gpu: Any) -> Request:
    if isinstance(gpu, (list, tuple)):
        raise where.error(
            "a list of requests, tried in order, is not in this version; write one dict"
        )
    where.keys(gpu, _GPU_KEYS, later=_LATER_GPU_KEYS)
    count = gpu.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int):
        raise where.at("count").wrong_type(count, "a whole number of cards, such as 1; 0 for none")
    if count < 0:
        raise where.at("count").error(f"{count} is negative; use 0 (no GPU) or more")
    if count == 0 and len(gpu) > 1:
        others = ", ".join(repr(k) for k in gpu if k != "count")
        raise where.error(f"count is 0 (no GPU), so {others} can mean nothing; remove it")
    return Request(
        count=count,
        share=_share(where.at("share"), gpu.get("share", 1)),
        min_memory_mib=_memory_mib(where.at("min_memory_gib"), gpu.get("min_memory_gib", 0)),
        models=_models(where, gpu),
    )


def _share(where: Where, value: Any) -> Fraction:
    allowed = "'1', the whole card"
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Fraction)):
        raise where.wrong_type(value, allowed)
    try:
        share = Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise where.error(f"{value!r} is not a fraction; allowed is {allowed}") from None
    if not 0 < share <= 1:
        raise where.error(f"{value!r} is not above 0 and at most 1; allowed is {allowed}")
    if share != 1:
        raise where.error(f"{value!r}: shares are not in this version; allowed is {allowed}")
    return share


def _memory_mib(where: Where, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise where.wrong_type(value, "a number of GiB, such as 24")
    if not math.isfinite(value) or value < 0:
        raise where.error(f"{value!r} is not an amount of memory; use a number of GiB, such as 24")
    return math.ceil(value * MIB_PER_GIB)


def _models(where: Where, gpu: Mapping[str, Any]) -> tuple[str, ...]:
    models = where.name_list(gpu, "models", "card names or patterns, such as ['*A100*']")
    return tuple(models or ())


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
