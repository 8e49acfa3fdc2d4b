"""Rule 7 in every order of events: no unfit card is offered, none is unfit for ever."""

from __future__ import annotations

from typing import Any

import pytest

from model.fitness import MUTANTS, Search


@pytest.mark.parametrize(
    "scene",
    [
        {"lives": 2},
        {"strangers": 1, "illnesses": 1},
        {"strangers": 2},
        {"lives": 1, "strangers": 1},
    ],
    ids=str,
)
def test_no_unfit_card_is_offered(scene: dict[str, Any]) -> None:
    found = Search(**scene).run()
    assert not found.broken, "\n".join((found.broken, *found.story))
    assert found.states > 100, "the search saw nothing"


@pytest.mark.parametrize("without", MUTANTS)
def test_a_part_left_out_breaks_it(without: str) -> None:
    fit, scene, breaks = MUTANTS[without]
    found = Search(fit, **scene).run()
    assert found.broken.startswith(breaks), found
