"""Ages where the clock of the engine's host is set while containers are there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.rows import foreign
from gpuspawner.claims import Listing, Row
from gpuspawner.sightings import Sightings


class Watch:
    """Lists what is there, on an engine whose clock may be set."""

    def __init__(self) -> None:
        self.sightings = Sightings()
        self.clock = 1_000_000.0
        self.steady = 50.0

    def advance(self, seconds: float) -> None:
        self.clock += seconds
        self.steady += seconds

    def see(self, *rows: Row, took: float = 0.0) -> Listing:
        begun = self.steady
        self.advance(took)
        return self.sightings.listing(rows, self.clock, begun=begun, now=self.steady)

    def made(self, state: str = "created", name: str = "x") -> Row:
        return foreign(name, state=state, created=int(self.clock))

    def ended_for(self, row: Row, stamp: float | None) -> float:
        listing = self.see(row)
        finished_at = self.sightings.finished(row, stamp, listing)
        assert finished_at is not None
        return listing.at - finished_at


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_of_the_first_listing_only_the_stamps_tell(watch: Watch) -> None:
    row = watch.made()
    watch.advance(500)
    assert watch.see(row).age(row) == 500
    assert watch.sightings.first == frozenset({"x"})


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_an_age_goes_on_as_before_when_the_clock_is_set(watch: Watch, jump: float) -> None:
    watch.see()
    watch.advance(5)
    row = watch.made()
    watch.advance(10)
    assert watch.see(row).age(row) == 10
    watch.clock += jump
    watch.advance(30)
    assert watch.see(row).age(row) == 40
    watch.advance(60)
    assert watch.see(row).age(row) == 100


def test_a_stamp_in_the_future_ages_from_its_first_sight(watch: Watch) -> None:
    row = watch.made()
    watch.clock -= 3600
    assert watch.see(row).age(row) == 0
    watch.advance(20)
    assert watch.see(row).age(row) == 20


def test_what_is_newer_than_the_process_is_not_in_its_first_listing(watch: Watch) -> None:
    old, new = watch.made(name="old"), watch.made(name="new")
    watch.see(old)
    watch.advance(5)
    watch.see(old, new)
    assert watch.sightings.first == frozenset({"old"})
    assert watch.sightings.since == 50


def test_a_listing_overtaken_by_a_later_one_forgets_nothing(watch: Watch) -> None:
    watch.see()
    begun = watch.steady
    watch.advance(5)
    row = watch.made()
    watch.advance(1)
    watch.see(row)
    watch.advance(9)
    watch.sightings.listing((), watch.clock, begun=begun, now=watch.steady)
    watch.clock += 7200
    assert watch.see(row).age(row) == 10


def test_one_that_went_and_is_listed_again_is_a_new_sight(watch: Watch) -> None:
    row = watch.made()
    watch.see(row)
    watch.advance(100)
    watch.see()
    watch.clock += 7200
    watch.advance(1)
    assert watch.see(row).age(row) == 1


@pytest.mark.parametrize("jump", [-7200.0, 0.0, 7200.0])
def test_since_when_it_has_ended(watch: Watch, jump: float) -> None:
    watch.see(watch.made("running"))
    watch.advance(4)
    stamp = watch.clock
    watch.clock += jump
    watch.advance(1)
    ended = watch.made("exited")
    first = watch.ended_for(ended, stamp)
    assert 0 <= first <= 5
    watch.clock -= jump
    watch.advance(8)
    assert watch.ended_for(ended, stamp) == first + 8


def test_one_that_ran_again_between_two_listings_has_ended_anew(watch: Watch) -> None:
    watch.see(watch.made("running"))
    ended = watch.made("exited")
    assert watch.ended_for(ended, watch.clock) == 0
    watch.advance(100)
    assert watch.ended_for(ended, watch.clock - 3) == 3


def test_without_a_stamp_nothing_is_said(watch: Watch) -> None:
    row = watch.made("exited")
    assert watch.sightings.finished(row, None, watch.see(row)) is None
    running = watch.made("running")
    assert watch.sightings.finished(running, 7.0, watch.see(running)) == 7.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pass", "set", "list", "list-empty"]), st.integers(-10_000, 10_000)
        ),
        max_size=30,
    )
)
def test_an_age_is_never_more_than_was_lived_nor_less_than_was_seen(
    steps: list[tuple[str, int]],
) -> None:
    watch = Watch()
    watch.see()
    row, born = watch.made(), watch.steady
    first: float | None = None
    for what, amount in steps:
        if what == "pass":
            watch.advance(abs(amount))
        elif what == "set":
            watch.clock += amount
        elif what == "list-empty":
            watch.see()
            first = None
        else:
            age = watch.see(row).age(row)
            first = watch.steady if first is None else first
            assert watch.steady - first <= age
            # By no more than what passed unseen before it was created.
            assert age <= watch.steady - min(born, 50.0)
