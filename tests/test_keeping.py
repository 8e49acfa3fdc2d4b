"""Cards kept for groups: who gets which, by week and clock, and what an admin may write."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, time, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.boxes import box
from gpuspawner.bookings import parse_bookings, parse_reserved
from gpuspawner.demand import Demand, Scene, decide, outlook
from gpuspawner.errors import ConfigError
from gpuspawner.keeping import DAYS, SPARE, Keep, Picked, Window, keep_cards, pick
from gpuspawner.placement import Policies
from gpuspawner.request import Card, Placement, Request, Shortage
from gpuspawner.topology import Topology

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0
CLASS = frozenset({"ml-class"})
RESEARCH = frozenset({"research"})
NOBODY: frozenset[str] = frozenset()


def at(text: str, zone: ZoneInfo = BERLIN) -> datetime:
    """A moment in 2030, whose first of January is a Tuesday: ``01-01 09:30``."""
    return datetime.strptime(f"2030-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=zone)


def booking(
    days: str = "tue", begins: str = "10:00", ends: str = "12:00", **fields: object
) -> dict[str, object]:
    written = {"group": "ml-class", "cards": 2, "days": days.split(), "from": begins, "to": ends}
    return {**written, **fields}


def scene(
    cards: list[Card], *keeps: Keep, now: datetime, topology: Topology | None = None
) -> Scene:
    return Scene(
        tuple(cards), topology or Topology(), Policies(), (), now, pick(keeps, tuple(cards))
    )


def gets(
    groups: frozenset[str], now: Scene, *, count: int = 1, hours: float | None = None
) -> list[int] | Shortage:
    """The indices somebody gets."""
    demand = Demand("ada", requests=(Request(count),), groups=groups)
    if hours is not None:
        demand = replace(demand, max_seconds=hours * HOUR)
    found = decide(demand, now)
    if isinstance(found, Placement):
        return sorted(int(u.removeprefix("GPU-")) for u in found.devices)
    assert isinstance(found, Shortage)
    return found


def why(groups: frozenset[str], now: Scene, *, hours: float | None = None) -> Shortage:
    found = gets(groups, now, hours=hours)
    assert isinstance(found, Shortage)
    return found


# -- always ----------------------------------------------------------------------------------------


def test_members_get_their_own_cards_first_and_others_never() -> None:
    keeps = parse_reserved({"research": ["gpu-02"], "theses": ["*A100*"]})
    only_research = scene(box(4), *keeps[:1], now=at("01-01 09:00"))
    assert gets(RESEARCH, only_research) == [2]
    assert gets(RESEARCH, only_research, count=2) == [0, 2]
    assert gets(NOBODY, only_research, count=3) == [0, 1, 3]
    short = gets(NOBODY, only_research, count=4)
    assert isinstance(short, Shortage)
    assert (short.suitable, short.closed, short.never) == (3, 1, True)
    both = scene(box(4), *keeps, now=at("01-01 09:00"))
    assert gets(frozenset({"theses"}), both, count=4) == [0, 1, 2, 3]
    assert gets(RESEARCH, both) == [2], "a card may be kept for several groups"
    assert why(NOBODY, both).closed == 4


def test_a_number_of_cards_is_the_highest_of_those_in_service_and_not_twice_the_same() -> None:
    def picked(cards: list[Card], written: dict[str, object]) -> list[list[str]]:
        return [sorted(uuids) for _, uuids in pick(parse_reserved(written), cards).cards]

    cards = box(5)
    assert picked(cards, {"a": 2, "b": 1}) == [["GPU-03", "GPU-04"], ["GPU-02"]]
    cards[4] = replace(cards[4], unavailable="ill")
    assert picked(cards, {"a": 2}) == [["GPU-02", "GPU-03"]]
    cards[4] = replace(cards[4], settling=True)
    assert picked(cards, {"a": 2}) == [["GPU-03", "GPU-04"]]
    assert picked(cards, {"a": 3, "b": 3}) == [["GPU-02", "GPU-03", "GPU-04"], ["GPU-00", "GPU-01"]]
    assert picked(cards, {"a": ["GPU-04"], "b": 1}) == [["GPU-04"], ["GPU-03"]]


def test_a_slice_follows_its_card_and_may_be_named_alone() -> None:
    card = replace(box(1)[0], sliced=True, unavailable="sliced")
    slices = [
        Card(f"MIG-{n}", 0, card.model, 9856, mig_profile="1g.10gb", parent=card.uuid)
        for n in range(2)
    ]
    cards = [card, *slices]
    for written in (["GPU-00"], ["*A100*"], 1):
        ((_, uuids),) = pick(parse_reserved({"research": written}), cards).cards
        assert uuids == {"GPU-00", "MIG-0", "MIG-1"}
    ((_, uuids),) = pick(parse_reserved({"research": ["MIG-1"]}), cards).cards
    assert uuids == {"MIG-1"}
    ill = [card, *(replace(s, unavailable="ill") for s in slices), *box(2)[1:]]
    ((_, uuids),) = pick(parse_reserved({"research": 2}), ill).cards
    assert uuids == {"GPU-01"}


def test_names_that_no_card_has_are_told() -> None:
    keeps = parse_reserved({"a": ["GPU-99", "*A100*"], "b": ["*H200*"], "c": 9})
    assert pick(keeps, box(2)).unknown == ("GPU-99", "*H200*")


# -- by the hours of the week ----------------------------------------------------------------------


def test_while_a_booking_runs_its_cards_are_the_groups_alone() -> None:
    keeps = parse_bookings([booking()])
    now = scene(box(3), *keeps, now=at("01-01 10:00"))
    assert gets(CLASS, now) == [1]
    assert gets(CLASS, now, count=3) == [0, 1, 2]
    assert gets(NOBODY, now, hours=1) == [0]
    two = Demand("ada", requests=(Request(2),), max_seconds=HOUR)
    short = decide(two, now)
    assert isinstance(short, Shortage)
    assert (short.free_suitable, short.kept, short.never) == (1, 2, False)
    assert short.kept_until == at("01-01 12:00")
    assert outlook(two, now) == (3, 1)
    over = scene(box(3), *keeps, now=at("01-01 12:00"))
    assert decide(two, over) == Placement(("GPU-00", "GPU-01"), Fraction(1), 40960, Request(2))


@pytest.mark.parametrize(
    ("now", "hours", "free"),
    [
        ("01-01 09:00", 0.5, True),
        ("01-01 08:50", 1, True),
        ("01-01 08:51", 1, False),
        ("01-01 09:59", 0.5, False),
        ("01-01 12:00", 24, True),
        ("01-01 12:00", 7 * 24, False),
        ("01-07 10:00", 24, False),
        ("01-07 09:50", 24, True),
    ],
)
def test_before_a_booking_begins_short_servers_only(now: str, hours: float, free: bool) -> None:
    cards = box(2)
    then = scene(cards, *parse_bookings([booking()]), now=at(now))
    assert gets(CLASS, then, hours=hours) == [0]
    assert gets(CLASS, then) == [0], "members need no limit"
    if free:
        assert gets(NOBODY, then, hours=hours) == [0]
    else:
        short = why(NOBODY, then, hours=hours)
        if hours < 7 * 24:
            assert short.kept_from in (at("01-01 10:00"), at("01-08 10:00"))
            assert not short.never


def test_a_server_without_a_limit_never_takes_a_booked_card() -> None:
    for now in ("01-01 09:00", "01-01 11:00", "01-03 11:00"):
        short = why(NOBODY, scene(box(2), *parse_bookings([booking()]), now=at(now)))
        assert (short.closed, short.suitable, short.never) == (2, 0, True)


def test_the_longest_server_that_fits_between_two_bookings_is_not_never() -> None:
    keeps = parse_bookings([booking()])
    hours = 7 * 24 - 2 - 1 / 6
    assert gets(NOBODY, scene(box(2), *keeps, now=at("01-01 12:00")), hours=hours) == [0]
    later = scene(box(2), *keeps, now=at("01-01 12:30"))
    assert not why(NOBODY, later, hours=hours).never
    assert why(NOBODY, later, hours=hours + 0.01).never


def test_a_short_booking_within_a_long_one_leaves_no_gap() -> None:
    week = "mon tue wed thu fri sat sun"
    keeps = parse_bookings(
        [
            booking(week, "00:00", "20:00", cards=["*"]),
            booking(week, "10:00", "11:00", cards=["*"], group="b"),
        ]
    )
    now = scene(box(1), *keeps, now=at("01-01 12:00"))
    assert not why(NOBODY, now, hours=3).never
    assert why(NOBODY, now, hours=4).never


def test_a_booking_goes_before_what_is_reserved() -> None:
    keeps = (*parse_reserved({"research": ["*"]}), *parse_bookings([booking(cards=["*"])]))
    running = scene(box(2), *keeps, now=at("01-01 11:00"))
    assert gets(CLASS, running) == [0]
    assert why(RESEARCH, running, hours=1).kept == 2
    after = scene(box(2), *keeps, now=at("01-01 13:00"))
    assert gets(RESEARCH, after, hours=1) == [0]
    short = why(CLASS, after)
    assert (short.kept, short.closed, short.never) == (2, 0, False), "theirs again on Tuesday"
    assert why(NOBODY, running, hours=1).never


def test_overlapping_bookings_are_for_all_of_their_groups() -> None:
    keeps = parse_bookings(
        [booking(cards=["*"]), booking("tue", "11:00", "13:00", group="other", cards=["*"])]
    )
    now = scene(box(1), *keeps, now=at("01-01 11:30"))
    assert gets(CLASS, now) == gets(frozenset({"other"}), now) == [0]
    assert why(NOBODY, now, hours=1).kept_until == at("01-01 13:00")
    only_first = scene(box(1), *keeps, now=at("01-01 10:30"))
    assert isinstance(gets(frozenset({"other"}), only_first), Shortage)


def test_numbers_share_cards_only_where_their_hours_do_not_meet() -> None:
    def uuids(*written: dict[str, object]) -> list[list[str]]:
        return [sorted(u) for _, u in pick(parse_bookings(list(written)), box(8)).cards]

    top, next_ = ["GPU-06", "GPU-07"], ["GPU-04", "GPU-05"]
    assert uuids(booking(), booking("wed")) == [top, top]
    assert uuids(booking(), booking("tue", "12:00", "13:00")) == [top, top]
    assert uuids(booking(), booking("tue", "11:59", "13:00")) == [top, next_]
    assert uuids(booking("sun", "22:00", "02:00"), booking("mon", "01:00", "03:00")) == [top, next_]
    assert uuids(booking(timezone="Asia/Tokyo"), booking("wed")) == [top, next_]


@pytest.mark.parametrize(
    ("days", "begins", "ends", "inside", "outside"),
    [
        ("tue", "22:00", "02:00", ["01-01 22:00", "01-02 01:59"], ["01-01 21:59", "01-02 02:00"]),
        ("sun", "23:00", "01:00", ["01-07 00:30"], ["01-01 00:30", "01-06 00:30"]),
        ("tue", "00:00", "24:00", ["01-01 00:00", "01-01 23:59"], ["01-02 00:00"]),
        # Clocks go forward on 31 March at 2, and back on 27 October at 3.
        ("sun", "01:00", "04:00", ["03-31 01:30", "03-31 03:59"], ["03-31 04:00", "03-31 00:59"]),
        ("sun", "02:30", "04:00", ["03-31 03:45"], ["03-31 01:59", "03-31 04:00"]),
        ("sun", "01:00", "04:00", ["10-27 02:30", "10-27 03:59"], ["10-27 04:00"]),
    ],
)
def test_over_midnight_and_when_clocks_are_changed(
    days: str, begins: str, ends: str, inside: list[str], outside: list[str]
) -> None:
    for zone in ({"timezone": "Europe/Berlin"}, {}):
        keeps = parse_bookings([booking(days, begins, ends, cards=["*"], **zone)])
        for moments, runs in ((inside, True), (outside, False)):
            for moment in moments:
                now = at(moment)
                seen = scene(box(1), *keeps, now=now if not zone else now.astimezone(timezone.utc))
                (card,) = keep_cards(
                    seen.cards, seen.picked, groups=NOBODY, max_seconds=1, now=seen.now
                )
                kept = card.kept
                running = kept is not None and kept.begins is None
                assert running is runs, (moment, zone, kept)


def test_a_window_keeps_its_hours_by_the_clock_over_a_change() -> None:
    window = Window(frozenset({6}), time(10), time(12))
    begins = [begin for begin, _ in window.runs(at("03-20 12:00"))]
    assert [b.astimezone(BERLIN).strftime("%d %H:%M") for b in begins[:2]] == [
        "24 10:00",
        "31 10:00",
    ]
    assert begins[1] - begins[0] == timedelta(days=7, hours=-1)


# -- laws ------------------------------------------------------------------------------------------

times = st.builds(time, st.integers(0, 23), st.sampled_from([0, 30]))
windows = st.builds(
    Window,
    st.frozensets(st.integers(0, 6), min_size=1, max_size=3),
    times,
    times,
    st.sampled_from(["", "America/New_York"]),
).filter(lambda w: w.begins != w.ends)
keeps_of_all_kinds = st.lists(
    st.builds(
        Keep,
        st.frozensets(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2),
        st.sampled_from([("GPU-00",), ("GPU-01", "GPU-02"), ("*A100*",)]),
        st.just(0),
        st.none() | windows,
    )
    | st.builds(
        Keep,
        st.frozensets(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2),
        st.just(()),
        st.integers(1, 3),
        st.none() | windows,
    ),
    max_size=3,
)
nows = st.integers(0, 14 * 48).map(lambda n: at("03-20 00:00") + timedelta(minutes=30 * n))
groups_of_somebody = st.frozensets(st.sampled_from(["a", "b", "c"]), max_size=2)
limits = st.none() | st.sampled_from([0.5, 3.0, 30.0, 200.0])


def runs_at(keep: Keep, moment: datetime) -> bool:
    """By the clock of the zone, told in other words: no dates, no UTC."""
    if keep.window is None:
        return False
    w = keep.window
    local = moment.astimezone(ZoneInfo(w.zone) if w.zone else BERLIN)
    today, clock = local.weekday(), local.time()
    if w.ends > w.begins:
        return today in w.days and w.begins <= clock < w.ends
    return (today in w.days and clock >= w.begins) or ((today - 1) % 7 in w.days and clock < w.ends)


def others(picked: Picked, card: Card, groups: frozenset[str]) -> list[Keep]:
    return [k for k in picked.of(card) if k.groups.isdisjoint(groups)]


@settings(max_examples=200)
@given(keeps_of_all_kinds, groups_of_somebody, limits, nows)
def test_what_is_kept_for_others_is_never_given(
    keeps: list[Keep], groups: frozenset[str], hours: float | None, now: datetime
) -> None:
    """Not now, and not so that it would be in use when a booking of others begins."""
    cards = box(4)
    then = scene(cards, *keeps, now=now)
    by_uuid = {c.uuid: c for c in cards}
    demand = Demand("ada", groups=groups, max_seconds=None if hours is None else hours * HOUR)
    for count in range(1, 5):
        found = decide(replace(demand, requests=(Request(count),)), then)
        if not isinstance(found, Placement):
            continue
        for card in (by_uuid[u] for u in found.devices):
            all_of_it = then.picked.of(card)
            mine_now = [k for k in all_of_it if k.groups & groups and runs_at(k, now)]
            if mine_now:
                continue
            theirs = others(then.picked, card, groups)
            reserved = [k for k in all_of_it if k.window is None]
            assert not reserved or any(k not in theirs for k in reserved)
            windows = [k for k in theirs if k.window]
            assert hours is not None or not windows
            steps = range(int(min(hours or 0, 200) * 4) + 1)
            moments = [(now.astimezone(timezone.utc) + timedelta(minutes=15 * n)) for n in steps]
            # Clocks that go forward leave out an hour that a window may begin in.
            assert not any(runs_at(k, m) for k in windows for m in moments)


@settings(max_examples=100)
@given(keeps_of_all_kinds, groups_of_somebody, limits, nows)
def test_members_of_more_groups_get_no_less_and_without_keeps_all_is_open(
    keeps: list[Keep], groups: frozenset[str], hours: float | None, now: datetime
) -> None:
    cards = tuple(box(4))
    picked = pick(keeps, cards)
    seconds = None if hours is None else hours * HOUR

    def open_to(whose: frozenset[str]) -> set[str]:
        seen = keep_cards(cards, picked, groups=whose, max_seconds=seconds, now=now)
        assert [replace(c, kept=None, own=False) for c in seen] == list(cards)
        assert not any(c.kept and c.own for c in seen)
        return {c.uuid for c in seen if c.kept is None}

    assert open_to(NOBODY) <= open_to(groups) <= open_to(frozenset("abc"))
    free = {c.uuid for c in cards if not picked.of(c)}
    assert free <= open_to(NOBODY)
    assert keep_cards(cards, Picked(), groups=groups, max_seconds=seconds, now=now) == cards


@settings(max_examples=60)
@given(keeps_of_all_kinds, groups_of_somebody, limits, nows)
def test_never_is_never_and_not_never_is_some_time(
    keeps: list[Keep], groups: frozenset[str], hours: float | None, now: datetime
) -> None:
    """Looked at every half hour of the two weeks after."""
    cards = tuple(box(2))
    picked = pick(keeps, cards)
    seconds = None if hours is None else hours * HOUR

    def kept(moment: datetime) -> list[bool]:
        seen = keep_cards(cards, picked, groups=groups, max_seconds=seconds, now=moment)
        return [c.kept is None for c in seen]

    always = [
        bool(c.kept and c.kept.always)
        for c in keep_cards(cards, picked, groups=groups, max_seconds=seconds, now=now)
    ]
    utc = now.astimezone(timezone.utc)
    later = [kept((utc + timedelta(minutes=10 * n)).astimezone(BERLIN)) for n in range(15 * 144)]
    for index in range(len(cards)):
        assert any(open_[index] for open_ in later) is not always[index]


# -- what an admin may write -----------------------------------------------------------------------


def test_what_may_be_written() -> None:
    (keep,) = parse_bookings(
        [booking("Monday wed SUN", "09:30", "24:00", cards=["*H100*"], timezone="Europe/Berlin")]
    )
    window = Window(frozenset({0, 2, 6}), time(9, 30), time(), "Europe/Berlin")
    assert keep == Keep(CLASS, ("*H100*",), 0, window)
    written = booking()
    del written["group"]
    (keep,) = parse_bookings([{**written, "groups": ["a", "b"]}])
    assert keep.groups == {"a", "b"}
    assert parse_bookings([]) == parse_reserved({}) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cards": 0}, "GPUPool.bookings: entry 0: cards: 0 is no number of cards; use a number"),
        ({"cards": True}, "cards: True is True or False; use a number of cards, such as 2"),
        ({"cards": []}, "cards: the list is empty"),
        ({"cards": "*H100*"}, "write ['*H100*']"),
        ({"cards": [7]}, "cards: 7 is in the list; use only UUIDs or models"),
        ({"days": []}, "days: the list is empty"),
        ({"days": ["tues"]}, "days: 'tues' is no day (did you mean 'tue'?); use days of the week"),
        ({"days": "tue"}, "days: 'tue' is text; use a list of days"),
        ({"from": "9:30"}, "from: '9:30' is no time; use hours and minutes by the 24-hour clock"),
        ({"from": "24:00"}, "from: '24:00' is no time"),
        ({"to": "25:00"}, "to: '25:00' is no time"),
        ({"to": 12}, "to: 12 is a number; use hours and minutes"),
        ({"to": "10:00"}, "to: '10:00' is when it begins; for a whole day write"),
        ({"timezone": "Berlin"}, "timezone: 'Berlin' is no time zone that this machine knows"),
        ({"timezone": "../etc/passwd"}, "timezone: '../etc/passwd' is no time zone"),
        ({"groups": ["a"]}, "write either 'group', a name, or 'groups', a list of names"),
        ({"group": " "}, "group: it is empty"),
        ({"day": ["mon"]}, "unknown key 'day' (did you mean 'days'?)"),
    ],
)  # fmt: skip
def test_a_mistake_names_entry_field_and_what_is_allowed(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_bookings([{**booking(), **changes}])
    assert str(error.value).startswith("GPUPool.bookings: entry 0")
    assert words in str(error.value).replace("entry 0.", "entry 0: ")


@pytest.mark.parametrize("key", ["group", "cards", "days", "from", "to"])
def test_what_is_missing_is_named(key: str) -> None:
    written = booking()
    del written[key]
    with pytest.raises(ConfigError, match=f"entry 0.*{key}"):
        parse_bookings([written])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["research"], "GPUPool.reserved_for: ['research'] is a list; use a dict"),
        ({"": 2}, "GPUPool.reserved_for: '' is no name of a group"),
        ({"research": "GPU-0"}, "write ['GPU-0']"),
        ({"research": -1}, "-1 is no number of cards"),
        ({3: 2}, "3 is no name of a group"),
    ],
)
def test_mistakes_in_what_is_reserved(value: object, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_reserved(value)
    assert words in str(error.value)


def test_bookings_are_a_list() -> None:
    with pytest.raises(ConfigError, match=r"GPUPool.bookings: .* is a dict; use a list"):
        parse_bookings(booking())


def test_days_are_told_in_the_order_of_the_week() -> None:
    assert DAYS[0] == "mon"
    assert len(DAYS) == 7
    assert timedelta(minutes=10) == SPARE
