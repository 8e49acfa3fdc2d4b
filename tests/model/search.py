"""The search itself: every state that can be reached, each held to the laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from .laws import Laws
from .machine import Broken
from .rules import RULES, Rules
from .world import Scene, World

W = TypeVar("W")


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        states: how many were seen.
        broken: the law that was broken, empty if none was.
        story: the steps that lead there.
    """

    states: int
    broken: str = ""
    story: tuple[str, ...] = ()


def search(scene: Scene, rules: Rules = RULES, *, limit: int = 10**9) -> Found:
    """Search a scene until everything was seen, a law is broken, or ``limit`` states were seen."""
    laws = Laws(scene, rules)
    first = scene.begin()
    came_by: dict[World, tuple[World, str] | None] = {first: None}
    frontier = [first]
    while frontier and len(came_by) < limit:
        world = frontier.pop()
        try:
            laws.check(world)
            for name, after in laws.steps(world):
                if after not in came_by:
                    came_by[after] = (world, name)
                    frontier.append(after)
        except Broken as broken:
            return Found(len(came_by), str(broken), story(came_by, world))
    return Found(len(came_by))


def story(came_by: dict[W, tuple[W, str] | None], world: W) -> tuple[str, ...]:
    """The steps that lead to a state."""
    steps = []
    while (before := came_by[world]) is not None:
        world, name = before
        steps.append(name)
    return tuple(reversed(steps))
