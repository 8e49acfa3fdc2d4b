"""Linked cards: the best set there is, whatever is free, and the best left for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.boxes import EIGHT, box, cube_mesh, islands, joined
from gpuspawner.linked import EXACT, choose_linked
from gpuspawner.placement import Policies, place
from gpuspawner.policies import POLICIES
from gpuspawner.request import Card, Placement, Request, Shortage
from gpuspawner.topology import Joint, Tier, Topology

Rank = tuple[int, int, int]


def rank(uuids: Sequence[str], topology: Topology) -> Rank:
    """How well a set is linked, told again in other words: worst pair, tiers, NVLinks."""
    joints = [topology.joint(a, b) for a, b in combinations(uuids, 2)]
    return (
        min(j.tier for j in joints),
        sum(j.tier for j in joints),
        sum(j.nvlinks for j in joints),
    )


def worth(uuids: Sequence[str], topology: Topology) -> Rank:
    """What a set of cards that stays free is worth; any number of cards."""
    return rank(uuids, topology) if len(uuids) > 1 else (0, 0, 0)


def best_rank(cards: Sequence[Card], count: int, topology: Topology) -> Rank:
    return max(rank(s, topology) for s in combinations([c.uuid for c in cards], count))


def required(count: int) -> Request:
    return Request(count, linked="require")


def pattern(cards: Sequence[Card], bits: int) -> list[Card]:
    """The machine with those cards free and the others taken."""
    return [replace(c, load=Fraction(not bits >> i & 1)) for i, c in enumerate(cards)]


# -- every free pattern ------------------------------------------------------------------------


@pytest.mark.parametrize("machine", EIGHT)
def test_linked_cards_are_given_in_every_free_pattern_where_they_exist(machine: str) -> None:
    """All 256 patterns of eight cards, all counts; the best set, or none where none is linked."""
    topology, cards = EIGHT[machine], box(8)
    seen = {Placement: 0, Shortage: 0}
    for bits in range(256):
        now = pattern(cards, bits)
        free = [c for c in now if not c.load]
        for count in range(2, 9):
            found = place(required(count), now, topology)
            seen[type(found)] += 1
            if len(free) < count:
                assert isinstance(found, Shortage)
                assert not found.unlinked
                continue
            best = best_rank(free, count, topology)
            if isinstance(found, Shortage):
                assert best[0] == Tier.NONE, (machine, bits, count)
                assert found.unlinked
                continue
            assert set(found.devices) <= {c.uuid for c in free}
            assert len(set(found.devices)) == count
            assert rank(found.devices, topology) == best
            assert best[0] > Tier.NONE
    assert min(seen.values()) > 100, "both answers are put to the test"


@pytest.mark.parametrize("machine", EIGHT)
def test_preferring_links_gives_the_best_there_is_and_never_refuses(machine: str) -> None:
    topology, cards = EIGHT[machine], box(8)
    for bits in range(256):
        now = pattern(cards, bits)
        free = [c for c in now if not c.load]
        for count in range(2, len(free) + 1):
            found = place(Request(count, linked="prefer"), now, topology)
            assert isinstance(found, Placement)
            assert rank(found.devices, topology) == best_rank(free, count, topology)


@settings(max_examples=60)
@given(st.integers(0, 2**16 - 1), st.sampled_from([2, 3, 4, 8]), st.booleans())
def test_sixteen_cards_in_islands(bits: int, count: int, halves: bool) -> None:
    sizes = (8, 8) if halves else (4, 4, 4, 4)
    topology = islands(*sizes, between=Joint(Tier.NUMA))
    now = pattern(box(16), bits)
    per = [bits >> sum(sizes[:n]) & (2**size - 1) for n, size in enumerate(sizes)]
    fits = any(island.bit_count() >= count for island in per)
    found = place(required(count), now, topology)
    if isinstance(found, Shortage):
        assert bits.bit_count() < count
    else:
        assert (rank(found.devices, topology)[0] == Tier.NVLINK) is fits


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_more_cards_than_are_all_tried(bits: int, count: int) -> None:
    """Beyond the exact search: islands are found all the same."""
    topology = islands(*[8] * 4, between=Joint(Tier.NONE))
    now = pattern(box(32), bits)
    most = max((bits >> 8 * n & 255).bit_count() for n in range(4))
    found = place(required(count), now, topology)
    assert isinstance(found, Placement) is (most >= count)
    if isinstance(found, Placement):
        assert rank(found.devices, topology)[0] == Tier.NVLINK
        assert not any(c.load for c in now if c.uuid in found.devices)


# -- laws ----------------------------------------------------------------------------------------


@st.composite
def tangles(draw: st.DrawFn, most: int = 8) -> tuple[list[Card], Topology]:
    """Cards joined in any way at all."""
    cards = box(draw(st.integers(2, most)))
    joints = {
        frozenset((a.uuid, b.uuid)): draw(
            st.sampled_from([Joint(t) for t in (Tier.NONE, Tier.NUMA, Tier.SWITCH)])
            | st.builds(Joint, st.just(Tier.NVLINK), st.integers(1, 18))
        )
        for a, b in combinations(cards, 2)
    }
    return cards, Topology(joints)


@settings(max_examples=150)
@given(tangles(), st.data())
def test_the_best_set_and_the_best_left_over_by_brute_force(
    machine: tuple[list[Card], Topology], data: st.DataObject
) -> None:
    cards, topology = machine
    count = data.draw(st.integers(2, len(cards)))
    found = choose_linked(cards, count, topology, required=False)
    uuids = {c.uuid for c in found}
    assert len(uuids) == count
    best = best_rank(cards, count, topology)
    assert rank(sorted(uuids), topology) == best

    def left(chosen: set[str]) -> Rank:
        return worth([c.uuid for c in cards if c.uuid not in chosen], topology)

    equals = [
        set(s) for s in combinations([c.uuid for c in cards], count) if rank(s, topology) == best
    ]
    assert left(uuids)[1:] == max(left(s)[1:] for s in equals)
    strict = choose_linked(cards, count, topology, required=True)
    assert strict == (found if best[0] > Tier.NONE else ())


@settings(max_examples=60)
@given(tangles(), st.data(), st.sampled_from(sorted(POLICIES)))
def test_the_order_of_the_cards_does_not_matter(
    machine: tuple[list[Card], Topology], data: st.DataObject, policy: str
) -> None:
    cards, topology = machine
    cards = [replace(c, order=data.draw(st.integers(0, 2))) for c in cards]
    request = Request(data.draw(st.integers(2, len(cards))), linked="prefer")
    policies = Policies(policy)
    shuffled = data.draw(st.permutations(cards))
    assert place(request, shuffled, topology, policies) == place(request, cards, topology, policies)


@settings(max_examples=30)
@given(tangles(most=20), st.data())
def test_what_is_grown_is_a_set_of_the_tier_it_says(
    machine: tuple[list[Card], Topology], data: st.DataObject
) -> None:
    cards, topology = machine
    count = data.draw(st.integers(2, len(cards)))
    found = choose_linked(cards, count, topology, required=True)
    assert len(set(found)) in (0, count)
    if found:
        assert rank([c.uuid for c in found], topology)[0] > Tier.NONE
    elif len(cards) <= EXACT and count <= 4:
        assert best_rank(cards, count, topology)[0] == Tier.NONE


def test_what_is_grown_never_leaves_its_tier_for_a_stronger_joint() -> None:
    near, strong = Joint(Tier.NUMA), Joint(Tier.NVLINK, 18)
    # Nobody begins with the set of three but card 1: it takes 0, whose strongest joint leads away.
    others = joined([(2, n) for n in range(6, 10)], near)
    topology = Topology({**joined([range(3)], near), **joined([(0, 3)], strong), **others})
    found = choose_linked(box(EXACT + 1), 3, topology, required=True)
    assert [c.index for c in found] == [0, 1, 2]


# -- one after the other -------------------------------------------------------------------------


def given_out(counts: Sequence[int], cards: Sequence[Card], topology: Topology) -> list[int]:
    """Requests one after the other; the worst tier of each."""
    now = list(cards)
    tiers: list[int] = []
    for count in counts:
        found = place(required(count), now, topology)
        assert isinstance(found, Placement), (counts, tiers)
        tiers.append(rank(found.devices, topology)[0])
        now = [replace(c, load=c.load + (c.uuid in found.devices)) for c in now]
    return tiers


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (2, 4, 2), (4, 2, 2), (2, 2, 4), (3, 4), (4, 4)])
@pytest.mark.parametrize("between", [Tier.NONE, Tier.NUMA])
def test_sequences_stay_within_islands(counts: tuple[int, ...], between: Tier) -> None:
    topology = islands(4, 4, between=Joint(between))
    assert set(given_out(counts, box(8), topology)) == {Tier.NVLINK}


@settings(max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(2, 4))
def test_as_many_as_the_islands_hold(sizes: list[int], count: int) -> None:
    """No island is broken into before its time: not one set fewer than would fit."""
    topology = islands(*sizes)
    fits = sum(size // count for size in sizes)
    assert len(given_out([count] * fits, box(sum(sizes)), topology)) == fits


def test_four_pairs_on_a_cube_mesh_are_all_linked_directly() -> None:
    assert given_out((2, 2, 2, 2), box(8), cube_mesh()) == [Tier.NVLINK] * 4


# -- ties ------------------------------------------------------------------------------------------


def chosen(count: int, cards: Sequence[Card], topology: Topology, policy: str = "") -> list[int]:
    policies = Policies(policy) if policy else Policies()
    found = place(required(count), cards, topology, policies)
    assert isinstance(found, Placement)
    return sorted(int(u.removeprefix("GPU-")) for u in found.devices)


def test_ties_go_by_own_display_memory_what_is_left_and_the_hubs_order() -> None:
    linked, cards = islands(6), box(6)

    def with_(**changes: dict[int, object]) -> list[Card]:
        return [
            replace(c, **{k: v[c.index] for k, v in changes.items() if c.index in v})  # type: ignore[arg-type]
            for c in cards
        ]

    assert chosen(2, cards, linked) == [0, 1]
    assert chosen(2, with_(order={0: 5, 1: 5}), linked) == [2, 3]
    assert chosen(2, with_(own={4: True, 5: True}), linked) == [4, 5]
    assert chosen(3, with_(own={4: True, 5: True}), linked) == [0, 4, 5]
    assert chosen(2, with_(display={0: True}), linked) == [1, 2]
    assert chosen(6, with_(display={0: True}), linked) == [0, 1, 2, 3, 4, 5]
    assert chosen(2, with_(memory_mib={0: 81920, 1: 81920}), linked) == [2, 3]
    smaller = with_(memory_mib={0: 40_930, 1: 40_930})[:5]
    assert chosen(2, smaller, islands(3, 2)) == [3, 4], "whole GiB count"
    assert chosen(2, box(5), islands(3, 2)) == [3, 4], "three stay together"
    assert chosen(2, [replace(c, own=c.index < 1) for c in box(5)], islands(3, 2)) == [0, 1]


def test_one_card_needs_no_link_and_a_set_of_one_island_beats_the_rest() -> None:
    apart = islands(1, 1, 1)
    found = place(Request(1, linked="require"), box(3), apart)
    assert isinstance(found, Placement)
    short = place(required(2), box(3), apart)
    assert isinstance(short, Shortage)
    assert (short.unlinked, short.never_linked, short.never) == (True, True, True)


def test_linked_some_day_is_not_never() -> None:
    topology = islands(2, 2)
    now = pattern(box(4), 0b0101)
    found = place(required(2), now, topology)
    assert isinstance(found, Shortage)
    assert (found.free_suitable, found.unlinked, found.never) == (2, True, False)
    found = place(required(3), now, topology)
    assert isinstance(found, Shortage)
    assert (found.unlinked, found.never) == (False, True)
