"""The one decision: limits and room together, over a list of requests tried in order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from fakes.demands import demand, scene
from gpuspawner.demand import decide
from gpuspawner.limits import Held, OverLimit
from gpuspawner.request import Card, Placement, Request, Shortage

BIG, SMALL = Request(2), Request(1)


def cards(count: int, *, taken: int = 0) -> list[Card]:
    return [
        Card(f"GPU-{i}", i, "A100", 40960, load=Fraction(1 if i < taken else 0))
        for i in range(count)
    ]


def has(cards: int, server: str = "x") -> Held:
    return Held("ada", server, "one-gpu", Fraction(cards))


def test_a_request_within_the_limits_further_down_is_taken() -> None:
    asked = replace(demand(limit=2), requests=(BIG, SMALL))
    found = decide(asked, scene(cards(4), has(1)))
    assert isinstance(found, Placement)
    assert found.request == SMALL
    found = decide(asked, scene(cards(4)))
    assert isinstance(found, Placement)
    assert found.request == BIG


def test_where_the_limits_leave_one_request_its_shortage_is_told() -> None:
    asked = replace(demand(limit=2), requests=(BIG, SMALL))
    found = decide(asked, scene(cards(4, taken=4), has(1)))
    assert isinstance(found, Shortage)
    assert found.request == SMALL


def test_over_every_limit_the_nearest_to_being_met_is_told() -> None:
    asked = replace(demand(limit=1), requests=(BIG, SMALL))
    found = decide(asked, scene(cards(4), has(1)))
    assert isinstance(found, OverLimit)
    assert found.asked == 1, "not that two are more than anybody may have"
    assert not found.never


def test_a_limit_is_told_before_a_shortage() -> None:
    found = decide(demand(limit=1), scene(cards(1, taken=1), has(1)))
    assert isinstance(found, OverLimit)
