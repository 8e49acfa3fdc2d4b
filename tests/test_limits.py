"""Limits as values: which apply, what counts, what is told to whom."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner import limit_words
from gpuspawner.errors import ConfigError
from gpuspawner.limits import (
    Held,
    Limit,
    OverLimit,
    check_limits,
    check_per_group,
    check_per_user,
    limits_for,
    most_per_user,
)
from test_messages import check

HALF = Fraction(1, 2)


def held(user: str, server: str = "", profile: str = "one-gpu", cards: Any = 1) -> Held:
    return Held(user, server, profile, Fraction(cards))


# -- which limits there are -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "groups", "most"),
    [
        (2, {"research"}, 2),
        (0, set(), 0),
        ({"*": 1, "research": 4}, set(), 1),
        ({"*": 1, "research": 4}, {"research", "chess"}, 4),
        ({"*": 2, "beginners": 1}, {"beginners"}, 2),
        ({"*": 1, "staff": 0, "research": 4}, {"staff", "research"}, 0),
        ({"*": 1, "staff": 0}, {"chess"}, 1),
        ({"research": 4}, {"chess"}, 1),  # no check lets this through; it gives nothing away
    ],
)
def test_the_highest_that_applies_counts(value: Any, groups: set[str], most: int) -> None:
    assert most_per_user(value, groups) == most


def test_limits_name_whose_servers_count() -> None:
    found = limits_for(
        "ada",
        most=2,
        groups=[("students", 6, {"ada", "ben"}), ("chess", 1, set())],
        profile="one-gpu",
        profile_name="One GPU",
        profile_most=4,
        profile_servers=3,
    )
    ada = frozenset({"ada"})
    assert found == (
        Limit("servers", "One GPU", Fraction(3), users=ada, profile="one-gpu"),
        Limit("user", "ada", Fraction(2), users=ada),
        Limit("group", "chess", Fraction(1), users=ada),
        Limit("group", "students", Fraction(6), users=frozenset({"ada", "ben"})),
        Limit("profile", "One GPU", Fraction(4), profile="one-gpu"),
    )
    assert limits_for("ada", most=0, profile="cpu", profile_name="CPU") == ()


@pytest.mark.parametrize("value", [0, 3, {"*": 0}, {"*": 1, "research": 4}])
def test_what_may_be_written_per_user(value: Any) -> None:
    check_per_user(value)


@pytest.mark.parametrize("value", [-1, 1.5, "2", None, True, {}, {"*": -1}, {"*": True}, {"": 1}])
def test_what_may_not_be_written_per_user(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"use a whole number|write it as a string|add '\*'"):
        check_per_user(value)


@pytest.mark.parametrize("value", [{"a": 0}, {"a": 1.0}, {"*": 1}, {1: 1}, {"a": None}])
def test_what_may_not_be_written_per_group(value: Any) -> None:
    check_per_group({"students": 6})
    with pytest.raises(ConfigError):
        check_per_group(value)


# -- what counts ------------------------------------------------------------------------------


def test_shares_count_by_their_part() -> None:
    [limit] = limits_for("ada", most=1)
    two = [held("ada", "a", cards=HALF), held("ada", "b", cards=HALF)]
    assert check_limits([limit], two[:1], HALF, user="ada") is None
    over = check_limits([limit], two, HALF, user="ada")
    assert over == OverLimit(limit, HALF, Fraction(1), tuple(two))


def test_servers_of_a_profile_count_also_without_a_gpu() -> None:
    limits = limits_for("ada", most=1, profile="cpu", profile_name="CPU only", profile_servers=1)
    mine = held("ada", "notes", "cpu", 0)
    more = (held("ben", "", "cpu", 0), held("ada", "training"))
    assert check_limits(limits, more, Fraction(0), user="ada") is None
    found = check_limits(limits, (mine, *more), Fraction(0), user="ada")
    assert found == OverLimit(limits[0], Fraction(1), Fraction(1), (mine,))


def test_a_server_without_a_gpu_keeps_every_limit_on_gpus() -> None:
    limits = limits_for("ada", most=1, groups=[("g", 1, ())], profile="p", profile_most=1)
    full = [held("ada", "x", "p"), held("ada", "y", "p")]
    assert check_limits(limits, full, Fraction(0), user="ada") is None


def test_a_server_without_a_gpu_is_not_among_those_to_stop() -> None:
    there = [held("ada", "notes", "cpu", 0), held("ada", "training")]
    over = check_limits(limits_for("ada", most=1), there, Fraction(1), user="ada")
    assert over is not None
    assert [h.server for h in over.own] == ["training"]


def test_a_group_counts_all_that_its_members_have_and_nobody_elses() -> None:
    limits = limits_for("ada", most=0, groups=[("students", 2, {"ada", "ben"})])
    assert check_limits(limits, [held("ben"), held("cleo")], Fraction(1), user="ada") is None
    over = check_limits(limits, [held("ben"), held("ada", "x")], Fraction(1), user="ada")
    assert over is not None
    assert (over.own, over.others) == ((held("ada", "x"),), (held("ben"),))


def test_the_admin_is_told_the_setting_and_who_holds_what() -> None:
    limits = limits_for("ada", most=0, groups=[("students", 2, {"ada", "ben"})])
    over = check_limits(limits, [held("ben"), held("ada", "x", cards=HALF)], HALF + 1, user="ada")
    assert over is not None
    assert over.for_admins == (
        "GPUSpawner.max_gpus_per_group allows group 'students' 2 GPUs; 3/2 asked for, 3/2 held by "
        "ada/x (1/2), ben/ (1)"
    )
    limits = limits_for("ada", most=0, profile="cpu", profile_name="CPU", profile_servers=1)
    found = check_limits(limits, [held("ada", "a", "cpu", 0)], Fraction(0), user="ada")
    assert found is not None
    assert found.for_admins.startswith("max_servers_per_user of the profile allows servers 'CPU' 1")
    assert found.for_admins.endswith("held by ada/a")


USERS = ("ada", "ben", "cleo")
PROFILES = ("whole", "half", "cpu")
starts = st.lists(
    st.tuples(
        st.sampled_from(USERS),
        st.sampled_from(PROFILES),
        st.sampled_from([Fraction(0), Fraction(1, 3), HALF, Fraction(1), Fraction(2)]),
        st.integers(0, 9),  # below 3: something of theirs is stopped instead
    ),
    max_size=40,
)


@given(starts, *(st.integers(1, 4) for _ in range(4)))
def test_no_order_of_starts_and_stops_exceeds_a_limit(
    asked: list[tuple[str, str, Fraction, int]], user: int, group: int, profile: int, servers: int
) -> None:
    """And nothing is refused that would keep them all."""
    members = {"ada", "ben"}
    there: list[Held] = []
    for number, (who, what, cards, luck) in enumerate(asked):
        if luck < 3:
            there = [h for h in there if h.user != who]
            continue
        limits = limits_for(
            who,
            most=user,
            groups=[("g", group, members)] if who in members else [],
            profile=what,
            profile_name=what,
            profile_most=profile,
            profile_servers=servers,
        )
        after = [*there, Held(who, f"s{number}", what, cards)]
        kept = (
            total(after, {who}) <= user
            and (who not in members or total(after, members) <= group)
            and total(after, set(USERS), what) <= profile
        ) or not cards
        few = sum(1 for h in after if (h.user, h.profile) == (who, what)) <= servers
        over = check_limits(limits, there, cards, user=who)
        assert (over is None) == (kept and few)
        if over is None:
            there = after


def total(there: list[Held], users: set[str], profile: str = "") -> Fraction:
    counted = [h for h in there if h.user in users and profile in ("", h.profile)]
    return sum((h.cards for h in counted), Fraction(0))


# -- words ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["g", "Two words", "one two three four five six"])
PARTS = st.sampled_from([Fraction(1, 3), HALF, Fraction(1), Fraction(3, 2), Fraction(2)])


@st.composite
def overs(draw: st.DrawFn) -> OverLimit:
    """A limit of any kind, exceeded."""
    kind: Any = draw(st.sampled_from(["user", "group", "profile", "servers"]))
    servers = kind == "servers"
    most = Fraction(draw(st.integers(1, 30)))
    others_too = kind in ("group", "profile")
    people = st.sampled_from(["ada", "wilhelmina"]) if others_too else st.just("ada")
    there = draw(st.lists(st.tuples(people, NAMES | st.just(""), PARTS), max_size=4))
    some = [Held(u, s, "p", Fraction(0) if servers else c) for u, s, c in there]
    limit = Limit(kind, draw(NAMES), most, None if others_too else frozenset({"ada"}))
    found = check_limits([limit], some, draw(PARTS), user="ada")
    if found is None:
        more = Held("wilhelmina" if others_too else "ada", "rest", "p", most)
        rest = [more] * int(most) if servers else [more]
        found = check_limits([limit], [*some, *rest], draw(PARTS), user="ada")
    assert found is not None
    return found


@given(overs(), st.booleans())
def test_words_for_any_limit(over: OverLimit, cpu: bool) -> None:
    for text in (limit_words.refused(over, cpu_available=cpu), limit_words.disabled(over)):
        check(text)
        assert "wilhelmina" not in text
        assert not re.search(r"\b1 GPUs|\b0 |\b1 are\b", text), text
    if not cpu:
        assert "without a GPU" not in limit_words.refused(over, cpu_available=False)
    assert all(h.user in over.for_admins for h in (*over.own, *over.others))


def words(limit: Limit, *there: Held, asked: Any = 1, cpu: bool = True) -> str:
    found = check_limits([limit], there, Fraction(asked), user="ada")
    assert found is not None
    return limit_words.refused(found, cpu_available=cpu)


STUDENTS = Limit("group", "students", Fraction(2))
NOTES = Limit("servers", "CPU only", Fraction(1), frozenset({"ada"}), "cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            words(STUDENTS, held("ben"), held("ben", "b")),
            (
                'Your group "students" may use 2 GPUs at a time, and 2 are in use. '
                "You can start without a GPU, or try again later."
            ),
        ),
        (
            words(STUDENTS, held("ben"), held("ada", "training"), cpu=False),
            (
                'Your group "students" may use 2 GPUs at a time, and 2 are in use, 1 by your '
                'server "training". Stop yours, or try again later.'
            ),
        ),
        (
            words(STUDENTS, held("ben"), asked=2, cpu=False),
            (
                'Your group "students" may use 2 GPUs at a time, and 1 is in use; this one asks '
                "for 2. Please try again later."
            ),
        ),
        (
            words(STUDENTS, asked=3),
            (
                'Your group "students" may use 2 GPUs at a time, this profile asks for 3. '
                "Please choose another profile."
            ),
        ),
        (
            words(Limit("profile", "One GPU", Fraction(1), None, "one-gpu"), held("ben")),
            (
                'Users of "One GPU" may use 1 GPU at a time, and 1 is in use. '
                "You can start without a GPU, or try again later."
            ),
        ),
        (
            words(NOTES, held("ada", "notes", "cpu", 0), asked=0),
            (
                'You may have one server of "CPU only" at a time, and you have it: your server '
                '"notes". Stop that server first.'
            ),
        ),
    ],
)
def test_words_by_example(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (14400, "4 hours"),
        (3600, "1 hour"),
        (5400, "90 minutes"),
        (60, "1 minute"),
        (90, "2 minutes"),
        (7.2, "7 seconds"),
        (0.1, "1 second"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert limit_words.duration(seconds) == text


def test_words_for_time() -> None:
    assert limit_words.time_ends(14400, 601, gpu=True) == (
        "Your 4 hours of GPU time end in 11 minutes. Please save and write a checkpoint before "
        "then. You can start again afterwards if a GPU is free."
    )
    assert limit_words.time_ends(3600, -5, gpu=False) == (
        "Your 1 hour of server time ends in 1 minute. Please save and write a checkpoint before "
        "then. You can start again afterwards."
    )
    assert limit_words.time_over(3600, gpu=True) == (
        "Your 1 hour of GPU time is over, so your server was stopped. Files are kept; variables "
        "are lost. You can start again if a GPU is free."
    )
    for gpu in (True, False):
        check(limit_words.time_ends(5400, 30, gpu=gpu))
        check(limit_words.time_over(5400, gpu=gpu))
