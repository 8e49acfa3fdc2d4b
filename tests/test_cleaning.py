"""What may be removed because nobody owns it: every case of the cleaner's rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.rows import HUB, OTHER_HUB, foreign, listing, ours
from gpuspawner.claims import LIVE_STATES, Row
from gpuspawner.cleaning import Cleaning, Ownership, leftovers

START = 1000
GRACE, ORPHAN = 120, 600


def clean(row: Row, at: float, **own: Any) -> Cleaning:
    knows: dict[str, Any] = {
        "known": (),
        "in_database": (),
        "earlier": {row.id} if row.created < START else (),
        "watching_seconds": at - START,
        **own,
    }
    return leftovers(
        listing(row, at=at),
        Ownership(HUB, **knows),
        created_grace_seconds=GRACE,
        orphan_grace_seconds=ORPHAN,
    )


def verdict(row: Row, at: float, **own: Any) -> str:
    """``keep``, ``alarm``, or the reason and whether it is forced."""
    done = clean(row, at, **own)
    assert len(done.remove) + len(done.alarms) <= 1
    if done.alarms:
        return "alarm"
    return f"{done.remove[0].why} {done.remove[0].force}" if done.remove else "keep"


OLD, NEW = START - 1, START
LATE = START + ORPHAN + 1


@pytest.mark.parametrize(
    ("state", "created", "at", "expected"),
    [
        ("created", OLD, START, "never-started False"),
        ("created", NEW, START + GRACE, "keep"),
        ("created", NEW, START + GRACE + 1, "never-started False"),
        ("running", OLD, START + ORPHAN, "keep"),
        ("running", OLD, LATE, "orphan True"),
        ("paused", OLD, LATE, "orphan True"),
        ("restarting", OLD, LATE, "orphan True"),
        ("running", NEW, LATE, "alarm"),
        ("running", NEW, START, "alarm"),
        ("exited", OLD, START + ORPHAN, "keep"),
        ("exited", OLD, LATE, "ended False"),
        ("exited", NEW, LATE, "keep"),
        ("removing", OLD, LATE, "keep"),
        ("dead", OLD, LATE, "keep"),
    ],
)
def test_mine(state: str, created: int, at: float, expected: str) -> None:
    row = ours("GPU-0", state=state, created=created)
    assert verdict(row, at) == expected
    assert verdict(row, at, known={"L1"}) == "keep"


@pytest.mark.parametrize("state", ["running", "paused", "exited"])
def test_what_the_database_names_is_kept(state: str) -> None:
    for created in (OLD, NEW):
        row = ours("GPU-0", state=state, created=created)
        assert verdict(row, LATE, in_database={"c1"}) == "keep"


def test_ended_containers_are_kept_where_they_are_wanted_for_a_restart() -> None:
    assert verdict(ours(state="exited", created=OLD), LATE, keep_ended=True) == "keep"


@pytest.mark.parametrize(
    ("state", "created", "at", "expected"),
    [
        ("created", OLD, OLD + GRACE, "keep"),
        ("created", OLD, OLD + GRACE + 1, "other-hub-stuck False"),
        ("created", NEW, NEW + GRACE + 1, "other-hub-stuck False"),
        ("running", OLD, LATE, "keep"),
        ("exited", OLD, LATE, "keep"),
    ],
)
def test_another_hubs(state: str, created: int, at: float, expected: str) -> None:
    assert verdict(ours("GPU-0", state=state, created=created, hub=OTHER_HUB), at) == expected


def test_what_is_older_is_told_by_id_whatever_the_clock_was_set_to() -> None:
    """A stamp in the future, or from before: only what the first listing showed was there then."""
    ahead = ours(state="running", created=LATE + 3600)
    assert verdict(ahead, LATE, earlier={"c1"}) == "orphan True"
    assert verdict(ahead, LATE, earlier={"c1"}, watching_seconds=5) == "keep"
    behind = ours(state="running", created=START - 3600)
    assert verdict(behind, LATE, earlier=()) == "alarm"


def test_outsiders_and_commits_of_ours_are_nobodys_business() -> None:
    for state in ("created", "running", "exited"):
        copy = ours("GPU-0", state=state, created=OLD, image_id="sha256:other")
        assert verdict(copy, LATE) == "keep"
        assert verdict(foreign(state=state, created=OLD), LATE) == "keep"


@given(
    state=st.sampled_from(["created", "running", "paused", "exited", "removing", "?"]),
    created=st.integers(START - 1000, START + 1000),
    at=st.integers(START, START + 3000),
    hub=st.sampled_from([HUB, OTHER_HUB]),
    known=st.booleans(),
    named=st.booleans(),
)
def test_laws_of_the_cleaner(
    state: str, created: int, at: int, hub: str, known: bool, named: bool
) -> None:
    row = ours("GPU-0", state=state, created=created, hub=hub)
    done = clean(row, at, known={"L1"} if known else (), in_database={"c1"} if named else ())
    for one in done.remove:
        assert not known
        # Only a running container of this hub's own past is ever stopped.
        assert not one.force or (state in LIVE_STATES and hub == HUB and created < START)
        assert state not in LIVE_STATES or (one.force and not named)
    for row in done.alarms:
        assert row.state in LIVE_STATES
        assert hub == HUB
