"""Reading ``GPUPool.reserved_for`` and ``GPUPool.bookings``, value by value. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .checks import Where, shown
from .keeping import DAYS, Keep, Window

_KEYS = ("group", "groups", "cards", "days", "from", "to", "timezone")
_CARDS = "UUIDs or models, such as ['GPU-5d0e2b3c-8f41-4a6b-9c1d-2e7f60a1b2c3', '*H100*']"
_CARDS_OR_COUNT = "a number of cards, such as 2, or a list of " + _CARDS
_RESERVED = "a dict with what is kept for each group, such as {'research': ['*H100*']}"
_BOOKING = "{'group': 'ml-class', 'cards': 4, 'days': ['mon'], 'from': '10:00', 'to': '12:00'}"
_NAMES = dict(
    zip(
        ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
        DAYS,
        strict=True,
    )
)
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
MIDNIGHT = "24:00"


def parse_reserved(value: Any) -> tuple[Keep, ...]:
    """Read ``c.GPUPool.reserved_for``.

    Raises:
        ConfigError: naming the group, what is wrong and what is allowed.
    """
    top = Where("GPUPool.reserved_for")
    top.mapping(value, _RESERVED)
    found = []
    for group, cards in value.items():
        if not isinstance(group, str) or not group.strip():
            raise top.error(f"{shown(group)} is no name of a group; use {_RESERVED}")
        patterns, count = _cards(top.at(group), cards)
        found.append(Keep(frozenset({group}), patterns, count))
    return tuple(found)


def parse_bookings(value: Any) -> tuple[Keep, ...]:
    """Read ``c.GPUPool.bookings``. Bookings may overlap.

    Raises:
        ConfigError: naming the entry, the field and what is allowed.
    """
    top = Where("GPUPool.bookings")
    if not isinstance(value, (list, tuple)):
        raise top.wrong_type(value, f"a list of bookings, such as [{_BOOKING}]")
    return tuple(_booking(Where(f"{top.path}: entry {i}"), entry) for i, entry in enumerate(value))


def _booking(where: Where, entry: Any) -> Keep:
    where.keys(entry, _KEYS)
    for key in ("cards", "days", "from", "to"):
        if key not in entry:
            raise where.at(key).error(f"it is missing; write a booking such as {_BOOKING}")
    patterns, count = _cards(where.at("cards"), entry["cards"])
    begins, ends = (_time(where.at(key), entry[key], key) for key in ("from", "to"))
    if begins == ends and begins != time():
        raise where.at("to").error(
            f"{entry['to']!r} is when it begins; for a whole day write from '00:00' to '24:00'"
        )
    window = Window(_days(where, entry), begins, ends, _zone(where, entry))
    return Keep(_groups(where, entry), patterns, count, window)


def _groups(where: Where, entry: Mapping[str, Any]) -> frozenset[str]:
    if ("group" in entry) == ("groups" in entry):
        raise where.error(
            "write either 'group', a name, or 'groups', a list of names: the groups it is for"
        )
    if "group" in entry:
        return frozenset({where.text(entry, "group")})
    return where.names(entry, "groups") or frozenset()


def _cards(where: Where, value: Any) -> tuple[tuple[str, ...], int]:
    """Patterns, or a number: one of both."""
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple, set, frozenset)):
        hint = f": write [{shown(value)}]" if isinstance(value, str) else ""
        raise where.wrong_type(value, _CARDS_OR_COUNT + hint)
    if isinstance(value, int):
        if not 1 <= value < 10_000:
            raise where.error(f"{shown(value)} is no number of cards; use {_CARDS_OR_COUNT}")
        return (), value
    if not value:
        raise where.error(f"the list is empty; remove it, or use {_CARDS_OR_COUNT}")
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise where.error(f"{shown(item)} is in the list; use only {_CARDS}")
    return tuple(dict.fromkeys(item.strip() for item in value)), 0


def _days(where: Where, entry: Mapping[str, Any]) -> frozenset[int]:
    here = where.at("days")
    allowed = f"days of the week: {', '.join(DAYS)}"
    days = where.name_list(entry, "days", allowed) or ()
    found = set()
    for day in days:
        short = _NAMES.get(day.strip().lower(), day.strip().lower())
        if short not in DAYS:
            hint = here.hint(short, [*DAYS, *_NAMES])
            raise here.error(f"{shown(day)} is no day{hint}; use {allowed}")
        found.add(DAYS.index(short))
    return frozenset(found)


def _time(where: Where, value: Any, key: str) -> time:
    allowed = "hours and minutes by the 24-hour clock, such as '09:30'"
    if not isinstance(value, str):
        raise where.wrong_type(value, allowed)
    if value == MIDNIGHT and key == "to":
        return time()
    found = _TIME.fullmatch(value)
    if not found:
        raise where.error(f"{shown(value)} is no time; use {allowed}")
    return time(int(found[1]), int(found[2]))


def _zone(where: Where, entry: Mapping[str, Any]) -> str:
    if "timezone" not in entry:
        return ""
    name = where.text(entry, "timezone")
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise where.at("timezone").error(
            f"{shown(name)} is no time zone that this machine knows; use a name such as "
            "'Europe/Berlin', or remove it for the hub's own zone (a machine without the package "
            "tzdata knows none)"
        ) from None
    return name
