"""No law is broken in any state that a small scene can reach; each rule left out breaks one."""

from __future__ import annotations

import pytest

from model.mutants import MUTANTS, Mutant
from model.scenes import LARGE, SMALL
from model.search import search


@pytest.mark.parametrize("name", SMALL)
def test_no_law_is_broken(name: str) -> None:
    found = search(SMALL[name])
    assert not found.broken, "\n".join((found.broken, *found.story))
    assert found.states > 10, "the search saw nothing"


@pytest.mark.parametrize("name", LARGE)
def test_a_large_scene_begins_well(name: str) -> None:
    """Their whole is for ``python -m model``."""
    found = search(LARGE[name], limit=200)
    assert not found.broken, "\n".join((found.broken, *found.story))
    assert found.states >= 200


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.rule}: {m.without}")
def test_a_rule_left_out_breaks_a_law(mutant: Mutant) -> None:
    found = search(mutant.scene, mutant.rules)
    assert found.broken.startswith(mutant.breaks), found
    assert found.story or found.states == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.rule}: {m.without}")
def test_with_the_rule_the_same_scene_is_sound(mutant: Mutant) -> None:
    found = search(mutant.scene, limit=500)
    assert not found.broken, "\n".join((found.broken, *found.story))
