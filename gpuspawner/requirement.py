"""What an image asks of the driver, by NVIDIA's own variable ``NVIDIA_REQUIRE_CUDA``. Pure.

NVIDIA's runtime hook refuses by it when a container starts; with CDI nobody else looks at it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

REQUIRE: Final = "NVIDIA_REQUIRE_CUDA"
#: Set to anything true, it takes the requirement back.
DISABLE: Final = "NVIDIA_DISABLE_REQUIRE"

_CONDITION = re.compile(r"(cuda|driver)(>=|<=|!=|==|=|>|<)([0-9]{1,9}(?:\.[0-9]{1,9})*)")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "==": operator.eq,
    "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


def unmet(env: Mapping[str, object], cuda: str | None, driver: str | None) -> str | None:
    """The requirement that a driver does not meet.

    Args:
        env: of the container, the image's own part included.
        cuda: newest CUDA version of the driver, such as ``12.8``; None if not told.
        driver: its own version, such as ``550.54.15``; None if not told.

    Returns:
        None if it is met, or nobody can tell. Else the CUDA version that is needed, empty if the
        requirement names none.
    """
    disabled = str(env.get(DISABLE) or "").lower() in ("1", "true", "t")
    # Spaces part alternatives, commas what must hold together.
    alternatives = str(env.get(REQUIRE) or "").split()
    offered = {"cuda": cuda, "driver": driver}
    if disabled or not alternatives or any(_holds(one, offered) for one in alternatives):
        return None
    needed = re.search(r"cuda>=?\s*([0-9.]*[0-9])", " ".join(alternatives))
    return needed[1] if needed else ""


def _holds(alternative: str, offered: Mapping[str, str | None]) -> bool:
    """True unless a condition is known to fail; a card's brand and kind are not looked at."""
    for condition in alternative.split(","):
        found = _CONDITION.fullmatch(condition)
        have = offered[found[1]] if found else None
        if found and have and not _COMPARE[found[2]](*_same_length(have, found[3])):
            return False
    return True


def _same_length(have: str, want: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both versions as numbers, as far as ``want`` is written: 550.54 is 550 where 550 is asked."""
    wanted = tuple(int(part) for part in want.split("."))
    numbers = tuple(int(part) for part in re.findall(r"[0-9]{1,9}", have))
    return (*numbers, *[0] * len(wanted))[: len(wanted)], wanted
