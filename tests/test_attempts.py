"""The list of attempts in flight: only the table's steps, each end counted."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.attempts import Attempt, Attempts
from gpuspawner.states import TRANSITIONS, State


def attempt(lease: str = "L", *devices: str, share: Fraction = Fraction(1)) -> Attempt:
    return Attempt(lease, devices, share, ("ada", ""))


def test_a_lease_is_used_once() -> None:
    attempts = Attempts()
    attempts.add(attempt("L"))
    with pytest.raises(ValueError, match="lease L is already in flight"):
        attempts.add(attempt("L"))


@pytest.mark.parametrize("end", [State.HELD, State.FREE])
def test_an_end_takes_the_attempt_out_and_is_counted_if_it_had_cards(end: State) -> None:
    attempts = Attempts()
    with_card, without = attempt("a", "GPU-0"), attempt("b")
    for one in (with_card, without):
        attempts.add(one)
        one.state = State.STARTING if end is State.HELD else State.RELEASING
    attempts.move(without, end)
    assert (attempts.ended, len(attempts)) == (0, 1)
    attempts.move(with_card, end)
    assert (attempts.ended, len(attempts)) == (1, 0)
    assert "a" not in attempts


def test_nothing_ends_twice() -> None:
    attempts = Attempts()
    one = attempt("a", "GPU-0")
    attempts.add(one)
    attempts.move(one, State.FREE)
    with pytest.raises(ValueError, match="no step"):
        attempts.move(one, State.FREE)
    assert attempts.ended == 1


def test_taking_counts_each_attempt_once_however_many_cards_it_shares() -> None:
    attempts = Attempts()
    attempts.add(attempt("a", "GPU-0", "GPU-1"))
    attempts.add(attempt("b", "GPU-1", share=Fraction(1, 2)))
    assert attempts.taking(["GPU-0"]) == 1
    assert attempts.taking(["GPU-0", "GPU-1"]) == Fraction(3, 2)
    assert attempts.taking(["GPU-2"]) == 0
    assert set(attempts.leases()) == {"a", "b"}


@given(st.lists(st.sampled_from(State), max_size=8))
def test_only_the_tables_steps_are_taken(steps: list[State]) -> None:
    attempts = Attempts()
    one = attempt("a", "GPU-0")
    attempts.add(one)
    for step in steps:
        before = one.state
        if step in TRANSITIONS[before]:
            attempts.move(one, step)
        else:
            with pytest.raises(ValueError, match="no step"):
                attempts.move(one, step)
            assert one.state is before
        assert ("a" in attempts) == bool(TRANSITIONS[one.state])
        assert attempts.ended == int(not TRANSITIONS[one.state])


def test_every_created_container_leaves_by_held_or_by_an_answered_removal() -> None:
    """Once create may have been sent and answered, nothing but a removal or a success ends it."""
    for state in (State.CLAIMED, State.WAITING, State.STARTING):
        assert State.FREE not in TRANSITIONS[state]
        assert State.RELEASING in TRANSITIONS[state]
    assert TRANSITIONS[State.RELEASING] == {State.FREE}
