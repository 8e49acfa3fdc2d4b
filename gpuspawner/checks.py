"""Reading a configuration value by value, with errors that say where and what is allowed.

Used by :mod:`gpuspawner.profiles`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .errors import ConfigError

_SHOWN_CHARS = 60

#: No number in a configuration comes near it; a larger one is a slip, and may overflow later.
MOST = 1_000_000

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "True or False"),
    (str, "text"),
    ((int, float), "a number"),
    ((list, tuple), "a list"),
    (Mapping, "a dict"),
    (type(None), "None"),
)


def shown(value: object, chars: int = _SHOWN_CHARS) -> str:
    """A short, printable form of any value; long ones are cut."""
    try:
        text = repr(value[: 2 * chars] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001 - an object's own fault, or an int too long to be written
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= chars else text[: chars - 1] + "…"


def kind_of(value: object) -> str:
    """What sort of value this is, in words."""
    return next((word for kind, word in _KINDS if isinstance(value, kind)), type(value).__name__)


@dataclass(frozen=True)
class Where:
    """A place in the configuration; every error it makes begins with that place."""

    path: str

    def __str__(self) -> str:
        return self.path

    def at(self, key: object) -> Where:
        """The place of a key below this one."""
        word = key if isinstance(key, str) and key.isprintable() else shown(key)
        return Where(
            f"{self.path}: {word:.80}" if self.path.endswith(")") else f"{self.path}.{word:.80}"
        )

    def entry(self, index: object, value: object) -> Where:
        """The place of a list's entry, by index (or key) and, where it has one, by name."""
        name = value.get("display_name") if isinstance(value, Mapping) else None
        named = shown(name) if isinstance(name, str) else "no display_name"
        return Where(f"{self.path}: entry {shown(index)} ({named})")

    @property
    def last(self) -> str:
        """The last part of the place: the key."""
        return re.split(r": |\.", self.path)[-1]

    def error(self, text: str) -> ConfigError:
        """An error at this place, to be raised by the caller."""
        return ConfigError(f"{self.path}: {text}")

    def wrong_type(self, value: object, allowed: str) -> ConfigError:
        """The error for a value of the wrong type."""
        return self.error(f"{shown(value)} is {kind_of(value)}; use {allowed}")

    def hint(self, key: object, allowed: Iterable[str]) -> str:
        """`` (did you mean 'x'?)`` where one of the allowed names is close, else empty."""
        close = get_close_matches(str(key)[:100], list(allowed), n=1)
        return f" (did you mean {close[0]!r}?)" if close else ""

    def mapping(self, value: object, allowed: str) -> None:
        """Raise ConfigError unless the value is a dict."""
        if not isinstance(value, Mapping):
            raise self.wrong_type(value, allowed)

    def keys(self, value: Any, allowed: Collection[str], *, later: Collection[str] = ()) -> None:
        """Raise ConfigError unless the value is a dict that has only allowed keys.

        Args:
            value: what was written.
            allowed: the keys it may have.
            later: keys that are known, but whose part is not built yet.
        """
        self.mapping(value, "a dict with " + ", ".join(allowed))
        for key in value:
            if key in later:
                raise self.at(key).error("not in this version; remove it")
            if key not in allowed:
                raise self.error(
                    f"unknown key {shown(key)}{self.hint(key, allowed)}; "
                    f"allowed are {', '.join(allowed)}"
                )

    def text(
        self, entry: Mapping[str, Any], key: str, *, default: str | None = None, empty: bool = False
    ) -> str:
        """A text; ``default`` None makes the key required."""
        if key not in entry:
            if default is None:
                raise self.at(key).error("it is missing; write a text")
            return default
        value = entry[key]
        if not isinstance(value, str):
            raise self.at(key).wrong_type(value, "a text")
        if not value.strip() and not empty:
            raise self.at(key).error("it is empty; write a text")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            # Half of a pair, of a file that was read with the wrong encoding: no page can have it.
            raise self.at(key).error(f"{shown(value)} has letters that no page can show; use UTF-8")
        return value

    def flag(self, entry: Mapping[str, Any], key: str) -> bool:
        """True or False; False where the key is missing."""
        value = entry.get(key, False)
        if not isinstance(value, bool):
            raise self.at(key).wrong_type(value, "True or False")
        return value

    def above_zero(self, entry: Mapping[str, Any], key: str, unit: str) -> float | None:
        """A number above zero; None where the key is missing."""
        if key not in entry:
            return None
        value = entry[key]
        here = self.at(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise here.wrong_type(value, f"a number of {unit}, such as 4 or 0.5")
        if not 0 < value < MOST:
            raise here.error(
                f"{shown(value)} is not above 0 and below {MOST:,}; use a number of {unit}, or "
                "remove it for no limit"
            )
        return float(value)

    def whole(self, entry: Mapping[str, Any], key: str, unit: str) -> int | None:
        """A whole number from 1 on; None where the key is missing."""
        if key not in entry:
            return None
        value = entry[key]
        here = self.at(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise here.wrong_type(value, f"a whole number of {unit}, such as 2")
        if not 1 <= value < MOST:
            raise here.error(
                f"{shown(value)} is not from 1 to {MOST - 1:,}; use a number of {unit}, or remove "
                "it for no limit"
            )
        return value

    def name_list(self, entry: Mapping[str, Any], key: str, allowed: str) -> tuple[str, ...] | None:
        """A list of texts, not empty; None where the key is missing."""
        if key not in entry:
            return None
        value = entry[key]
        here = self.at(key)
        if isinstance(value, str) and value.strip():
            raise here.wrong_type(value, f"a list of {allowed}: write [{shown(value)}]")
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection):
            raise here.wrong_type(value, f"a list of {allowed}")
        for item in value:
            if not isinstance(item, str) or not item.strip():
                raise here.error(f"{shown(item)} is in the list; use only {allowed}")
        if not value:
            raise here.error(f"the list is empty; remove it, or write {allowed}")
        return tuple(value)

    def names(self, entry: Mapping[str, Any], key: str) -> frozenset[str] | None:
        """A set of user or group names; None where the key is missing."""
        found = self.name_list(entry, key, "names")
        return None if found is None else frozenset(found)
