"""Placement: what it must never do, on inputs nobody thought of, and its policy on tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.placement import place, place_first
from gpuspawner.request import Card, Kept, Placement, Request, Shortage, has_room, suits

A100, L4 = "NVIDIA A100-SXM4-40GB", "NVIDIA L4"
HALF, FIFTH = Fraction(1, 2), Fraction(1, 5)

shares = st.sampled_from([Fraction(1), HALF, Fraction(1, 3), FIFTH])
loads = st.sampled_from([Fraction(0), FIFTH, HALF, Fraction(4, 5), Fraction(1), Fraction(3, 2)])
requests = st.builds(
    Request,
    count=st.integers(0, 5),
    share=shares,
    min_memory_mib=st.sampled_from([0, 10000, 20480, 40960, 90000]),
    models=st.sampled_from([(), (A100,), ("*a100*",), ("nvidia l4", "*H100*")]),
)


@st.composite
def machines(draw: st.DrawFn) -> list[Card]:
    """Up to eight cards, in any state, in any order."""
    count = draw(st.integers(0, 8))
    cards = [
        Card(
            uuid=f"GPU-{index}",
            index=index,
            model=draw(st.sampled_from([A100, L4, ""])),
            memory_mib=draw(st.sampled_from([None, 23034, 40960, 81920])),
            load=draw(loads),
            unavailable=draw(st.sampled_from(["", "", "", "GPU is lost"])),
            foreign=draw(st.booleans()),
            order=draw(st.integers(0, 3)),
            display=draw(st.booleans()),
        )
        for index in range(count)
    ]
    return draw(st.permutations(cards))


# -- laws -------------------------------------------------------------------------------------


@given(requests, machines())
def test_what_is_placed_fits(request: Request, cards: list[Card]) -> None:
    found = place(request, cards)
    if not isinstance(found, Placement):
        return
    by_uuid = {c.uuid: c for c in cards}
    chosen = [by_uuid[uuid] for uuid in found.devices]
    assert len(set(found.devices)) == len(chosen) == request.count
    assert found.share == request.share
    for card in chosen:
        assert not card.unavailable
        assert card.load + request.share <= 1
        assert suits(card, request)
        if request.min_memory_mib:
            assert (card.memory_mib or 0) * request.share >= request.min_memory_mib
        if found.memory_mib is not None:
            assert card.memory_mib is not None
            assert card.memory_mib >= found.memory_mib


@given(requests, machines())
def test_a_shortage_is_never_false(request: Request, cards: list[Card]) -> None:
    enough = sum(has_room(c, request) and suits(c, request) for c in cards) >= request.count
    assert isinstance(place(request, cards), Placement) == enough


@given(requests, machines())
def test_the_numbers_of_a_shortage_add_up(request: Request, cards: list[Card]) -> None:
    found = place(request, cards)
    if not isinstance(found, Shortage):
        return
    assert found.request == request
    assert found.total == len(cards)
    assert found.suitable == sum(suits(c, request) for c in cards)
    parts = (found.free_suitable, found.held, found.foreign, found.unavailable)
    assert sum(parts) == found.suitable
    assert min(parts) >= 0
    assert found.free_suitable < request.count
    assert found.free_suitable <= found.free <= found.total


@given(requests, machines(), st.data())
def test_the_order_of_the_cards_does_not_matter(
    request: Request, cards: list[Card], data: st.DataObject
) -> None:
    assert place(request, data.draw(st.permutations(cards))) == place(request, cards)


@given(requests, machines())
def test_never_means_that_no_release_helps(request: Request, cards: list[Card]) -> None:
    found = place(request, cards)
    freed = [replace(c, load=Fraction(0), unavailable="") for c in cards]
    never = isinstance(found, Shortage) and found.never
    assert never == isinstance(place(request, freed), Shortage)


@given(requests, machines())
def test_one_after_the_other_no_card_is_overfull(request: Request, cards: list[Card]) -> None:
    if request.count == 0:
        return
    given_out = {c.uuid: Fraction(0) for c in cards}
    now = list(cards)
    while isinstance(found := place(request, now), Placement):
        for uuid in found.devices:
            given_out[uuid] += request.share
        now = [replace(c, load=c.load + request.share * (c.uuid in found.devices)) for c in now]
    for card in cards:
        assert given_out[card.uuid] == 0 or card.load + given_out[card.uuid] <= 1


@given(machines(), shares)
def test_without_a_gpu_there_is_always_room(cards: list[Card], share: Fraction) -> None:
    nothing = Request(count=0, share=share)
    assert place(nothing, cards) == Placement(devices=(), share=share, request=nothing)


# -- policy -----------------------------------------------------------------------------------


def card(index: int, **changes: object) -> Card:
    base = Card(uuid=f"GPU-{index}", index=index, model=A100, memory_mib=40960)
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cards", "request_", "devices"),
    [
        pytest.param(
            [card(0, memory_mib=81920), card(1), card(2)],
            Request(),
            ("GPU-1",),
            id="the smallest that fits",
        ),
        pytest.param(
            [card(0, memory_mib=81920), card(1)],
            Request(min_memory_mib=50000),
            ("GPU-0",),
            id="a smaller one does not fit",
        ),
        pytest.param(
            [card(0, display=True, memory_mib=8000), card(1)],
            Request(),
            ("GPU-1",),
            id="a display card is offered last",
        ),
        pytest.param([card(0, display=True)], Request(), ("GPU-0",), id="but it is offered"),
        pytest.param(
            [card(0, order=9), card(1, order=4)],
            Request(),
            ("GPU-1",),
            id="each hub has an order of its own",
        ),
        pytest.param(
            [card(2), card(0), card(1)], Request(count=2), ("GPU-0", "GPU-1"), id="two by index"
        ),
        pytest.param(
            [card(0, load=Fraction(1)), card(1, unavailable="ill"), card(2)],
            Request(),
            ("GPU-2",),
            id="neither taken nor ill",
        ),
        pytest.param(
            [card(0, model=L4), card(1)], Request(models=("*A100*",)), ("GPU-1",), id="by pattern"
        ),
        pytest.param(
            [card(0, model=L4), card(1)], Request(models=("nvidia l4",)), ("GPU-0",), id="any case"
        ),
        pytest.param([card(0, load=HALF)], Request(share=HALF), ("GPU-0",), id="exactly the rest"),
        pytest.param(
            [card(0, memory_mib=None), card(1)],
            Request(min_memory_mib=1),
            ("GPU-1",),
            id="unknown memory is no promise",
        ),
    ],
)
def test_policy(cards: list[Card], request_: Request, devices: tuple[str, ...]) -> None:
    found = place(request_, cards)
    assert isinstance(found, Placement)
    assert found.devices == devices


def test_the_memory_of_a_placement_is_the_smallest_cards() -> None:
    found = place(Request(count=2), [card(0), card(1, memory_mib=23034)])
    assert isinstance(found, Placement)
    assert found.memory_mib == 23034
    found = place(Request(count=2), [card(0), card(1, memory_mib=None)])
    assert isinstance(found, Placement)
    assert found.memory_mib is None


def test_minimum_memory_is_what_the_user_gets_not_the_cards_size() -> None:
    half = Request(share=HALF, min_memory_mib=20480)
    assert suits(card(0), half)
    assert not suits(card(0, memory_mib=40959), half)


def test_a_shortage_tells_what_is_in_the_way() -> None:
    cards = [
        card(0, load=Fraction(1)),
        card(1, load=Fraction(1), foreign=True),
        card(2, unavailable="GPU is lost", load=Fraction(1)),
        card(3, model=L4),
    ]
    found = place(Request(models=("*A100*",)), cards)
    assert isinstance(found, Shortage)
    assert (found.total, found.suitable, found.free, found.free_suitable) == (4, 3, 1, 0)
    assert (found.held, found.foreign, found.unavailable) == (1, 1, 1)
    assert not found.never
    none = place(Request(models=("*H100*",)), cards)
    assert isinstance(none, Shortage)
    assert none.never


# -- several requests, and cards kept for others ---------------------------------------------------


def test_the_first_request_that_can_be_met_counts() -> None:
    big, small, any_ = Request(min_memory_mib=80_000), Request(models=("*L4*",)), Request()
    cards = [card(0, load=Fraction(1)), card(1)]
    found = place_first([big, small, any_], cards)
    assert isinstance(found, Placement)
    assert (found.devices, found.request) == (("GPU-1",), any_)


def test_of_several_shortages_the_one_with_the_most_to_wait_for_is_told() -> None:
    cards = [card(n, load=Fraction(1)) for n in range(3)] + [card(3, model=L4, load=Fraction(1))]
    l4, a100, never = Request(models=("*L4*",)), Request(models=("*A100*",)), Request(5)
    found = place_first([never, l4, a100], cards)
    assert isinstance(found, Shortage)
    assert (found.request, found.suitable) == (a100, 3)
    assert [s.request for s in found.others] == [never, l4]
    found = place_first([never, l4], cards)
    assert isinstance(found, Shortage)
    assert found.request == l4, "one that can never be met is not waited for"
    found = place_first([Request(6, models=("*L4*",)), never], cards)
    assert isinstance(found, Shortage)
    assert (found.request, found.never) == (never, True)


AT = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
LATER = AT + timedelta(hours=3)


@pytest.mark.parametrize(
    ("kept", "until", "begins"),
    [
        ([Kept("x", until=AT), Kept("x", until=LATER)], AT, None),
        ([Kept("x", begins=AT), Kept("x", begins=LATER)], None, LATER),
        ([Kept("x", begins=AT), Kept("x", until=LATER)], LATER, None),
        ([Kept("x"), Kept("x", begins=AT)], None, None),
    ],
)
def test_when_what_is_kept_can_be_had(
    kept: list[Kept], until: datetime | None, begins: datetime | None
) -> None:
    cards = [card(n, kept=k) for n, k in enumerate(kept)]
    for machine in (cards, [*cards[::-1], card(7, load=Fraction(1))]):
        found = place(Request(), machine)
        assert isinstance(found, Shortage)
        assert (found.kept, found.kept_until, found.kept_from) == (2, until, begins)
        assert not found.never


@pytest.mark.parametrize("count", [-1, -5])
def test_counts_that_make_no_sense(count: int) -> None:
    with pytest.raises(ValueError, match=f"count is {count}; use 0"):
        Request(count=count)


@pytest.mark.parametrize("share", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_shares_that_make_no_sense(share: Fraction) -> None:
    with pytest.raises(ValueError, match="use a fraction above 0 and at most 1"):
        Request(share=share)
