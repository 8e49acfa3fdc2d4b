"""How many cards users, groups and profiles may hold, and what they hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from .errors import ConfigError

#: In ``max_gpus_per_user`` by group: everybody else.
EVERYBODY = "*"
#: Which setting sets a limit of each kind, for admins.
_SETTINGS = {
    "user": "GPUSpawner.max_gpus_per_user",
    "group": "GPUSpawner.max_gpus_per_group",
    "profile": "max_gpus of the profile",
    "servers": "max_servers_per_user of the profile",
}


@dataclass(frozen=True)
class Held:
    """What one server of this hub holds or is about to hold.

    Attributes:
        cards: number of cards times the share of each; 0 for a server without a GPU.
    """

    user: str
    server: str
    profile: str
    cards: Fraction


@dataclass(frozen=True)
class Limit:
    """One limit that a start must keep.

    Attributes:
        kind: cards of one user; cards of a group's members together; cards of a profile's servers
            together; or servers of a profile that one user has.
        name: of the user, the group or the profile (as people read it).
        most: cards, or servers.
        users: whose servers count; None for everybody's.
        profile: slug of the profile whose servers count; empty for all.
    """

    kind: Literal["user", "group", "profile", "servers"]
    name: str
    most: Fraction
    users: frozenset[str] | None = None
    profile: str = ""

    def counts(self, held: Held) -> bool:
        """True if what a server holds counts towards this limit."""
        if self.users is not None and held.user not in self.users:
            return False
        if self.profile and held.profile != self.profile:
            return False
        return self.kind == "servers" or held.cards > 0


@dataclass(frozen=True)
class OverLimit:
    """A start would exceed a limit.

    Attributes:
        asked: cards that the start asks for, at least (servers: 1).
        total: what counts towards the limit already.
        own: the part of that which is the asking user's own, by server.
        others: the part of that which is others', for admins only.
    """

    limit: Limit
    asked: Fraction
    total: Fraction
    own: tuple[Held, ...] = ()
    others: tuple[Held, ...] = ()

    @property
    def never(self) -> bool:
        """True if it would exceed the limit even if nobody held anything."""
        return self.asked > self.limit.most

    @property
    def for_admins(self) -> str:
        """Which limit, where it is set, and who holds what of it."""
        limit = self.limit
        unit = "servers" if limit.kind == "servers" else "GPUs"
        held = [
            f"{h.user}/{h.server}" + ("" if limit.kind == "servers" else f" ({h.cards})")
            for h in (*self.own, *self.others)
        ]
        return (
            f"{_SETTINGS[limit.kind]} allows {limit.kind} {limit.name!r} {limit.most} {unit}; "
            f"{self.asked} asked for, {self.total} held by {', '.join(held) or 'nobody'}"
        )


def check_limits(
    limits: Sequence[Limit], held: Collection[Held], asked: Fraction, *, user: str
) -> OverLimit | None:
    """The first limit that a start of ``asked`` cards would exceed; None if it keeps all."""
    for limit in limits:
        counted = [h for h in held if limit.counts(h)]
        servers = limit.kind == "servers"
        more = Fraction(1) if servers else asked
        total = Fraction(len(counted)) if servers else sum((h.cards for h in counted), Fraction(0))
        if more and total + more > limit.most:
            own = tuple(h for h in counted if h.user == user)
            others = tuple(h for h in counted if h.user != user)
            return OverLimit(limit, more, total, own, others)
    return None


# -- what the admin wrote -----------------------------------------------------------------------


def check_per_user(value: Any) -> None:
    """Check ``max_gpus_per_user``: a number, or numbers by group.

    Raises:
        ConfigError: what is wrong and what to write.
    """
    if not isinstance(value, Mapping):
        _check_most(value, least=0)
        return
    for group, most in value.items():
        _check_group(group)
        _check_most(most, f"{group!r}: ", least=0)
    if EVERYBODY not in value:
        raise ConfigError(
            f"there is no entry {EVERYBODY!r}, so nobody knows how many GPUs users of no listed "
            f"group may hold; add {EVERYBODY!r}: 1, or 0 for no limit"
        )


def check_per_group(value: Mapping[Any, Any]) -> None:
    """Check ``max_gpus_per_group``: numbers by group.

    Raises:
        ConfigError: what is wrong and what to write.
    """
    for group, most in value.items():
        _check_group(group)
        if group == EVERYBODY:
            raise ConfigError(f"{EVERYBODY!r} is no group here; name groups of the hub")
        _check_most(most, f"{group!r}: ", least=1)


def _check_group(group: Any) -> None:
    if not isinstance(group, str) or not group:
        raise ConfigError(f"{group!r} is not the name of a group; write it as a string")


def _check_most(most: Any, place: str = "", *, least: int) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or most < least:
        no_limit = "0 for no limit" if least == 0 else "or leave the group out for no limit"
        raise ConfigError(
            f"{place}{most!r} is no limit; use a whole number of GPUs from {least} on, {no_limit}"
        )


def most_per_user(value: int | Mapping[str, int], groups: Collection[str]) -> int:
    """Most cards that a user of these groups may hold, 0 for no limit: the highest that applies."""
    if not isinstance(value, Mapping):
        return value
    applying = [most for group, most in value.items() if group == EVERYBODY or group in groups]
    # No limit is the highest of all; a user to whom nothing applies gets nothing unlimited.
    return 0 if 0 in applying else max(applying, default=1)


def limits_for(
    user: str,
    *,
    most: int,
    groups: Iterable[tuple[str, int, Collection[str]]] = (),
    profile: str = "",
    profile_name: str = "",
    profile_most: int | None = None,
    profile_servers: int | None = None,
) -> tuple[Limit, ...]:
    """The limits that a start of this user's must keep, the nearest to the user first.

    Args:
        most: cards of the user's servers together; 0 for no limit.
        groups: the limited groups that the user is in: name, most cards, names of the members.
        profile: slug of what is started.
        profile_name: as people read it.
        profile_most: cards of all servers of the profile together.
        profile_servers: servers of the profile that one user may have.
    """
    mine = frozenset({user})
    found: list[Limit] = []
    if profile_servers is not None:
        found.append(
            Limit("servers", profile_name, Fraction(profile_servers), users=mine, profile=profile)
        )
    if most:
        found.append(Limit("user", user, Fraction(most), users=mine))
    found += [
        # Whoever asks is a member, also where the hub's list of them lags behind.
        Limit("group", name, Fraction(limit), users=frozenset(members) | mine)
        for name, limit, members in sorted(groups)
    ]
    if profile_most is not None:
        found.append(Limit("profile", profile_name, Fraction(profile_most), profile=profile))
    return tuple(found)
