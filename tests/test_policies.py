"""The policies, by tables on synthetic machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.boxes import EIGHT, box, islands
from gpuspawner.placement import Policies, place
from gpuspawner.policies import POLICIES
from gpuspawner.request import Card, Placement, Request, has_room, suits
from gpuspawner.topology import Joint, Tier, Topology, groups_of

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
HALVES, QUARTERS = Request(share=HALF), Request(share=QUARTER)
TWO_BY_FOUR = islands(4, 4)
NOTHING_KNOWN = Topology()


def taken(cards: Sequence[Card], loads: dict[int, Fraction | int]) -> list[Card]:
    return [replace(c, load=Fraction(loads.get(c.index, 0))) for c in cards]


def mixed() -> list[Card]:
    """Two small cards, two of 40 GB and two of 80 GB, the largest first."""
    sizes = [81920, 81920, 40960, 40960, 23034, 23034]
    return [replace(c, memory_mib=mib) for c, mib in zip(box(6), sizes, strict=True)]


def sliced(*uses: int) -> list[Card]:
    """Four slices of each of two cards; so many of each card's are taken."""
    return [
        Card(
            f"MIG-{card}{n}",
            card,
            "NVIDIA A100",
            9856,
            load=Fraction(n < uses[card]),
            mig_profile="1g.10gb",
            parent=f"GPU-{card:02}",
        )
        for card in range(2)
        for n in range(4)
    ]


def give(
    policy: str,
    cards: Sequence[Card],
    request: Request,
    topology: Topology = NOTHING_KNOWN,
    times: int = 1,
) -> list[tuple[int, ...]]:
    """The indices given to so many equal requests, one after the other."""
    now, found = list(cards), []
    for _ in range(times):
        got = place(request, now, topology, Policies(policy, policy))
        assert isinstance(got, Placement)
        index = {c.uuid: c.index for c in now}
        found.append(tuple(index[u] for u in got.devices))
        now = [replace(c, load=c.load + request.share * (c.uuid in got.devices)) for c in now]
    return found


ONE = Request()
SLICE = Request(mig_profile="1G.10GB")


@pytest.mark.parametrize(
    ("policy", "cards", "topology", "request_", "given_"),
    [
        # smallest that fits
        ("smallest-that-fits", mixed(), NOTHING_KNOWN, ONE, [4, 5, 2, 3, 0, 1]),
        ("smallest-that-fits", mixed(), NOTHING_KNOWN, Request(min_memory_mib=30_000), [2, 3, 0]),
        ("smallest-that-fits", box(8), TWO_BY_FOUR, ONE, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("smallest-that-fits", mixed(), NOTHING_KNOWN, HALVES, [4, 4, 5, 5, 2, 2]),
        # pack of whole cards
        ("pack", taken(box(8), {5: 1}), TWO_BY_FOUR, ONE, [4, 6, 7, 0, 1, 2, 3]),
        ("pack", taken(box(8), {0: 1, 4: 1, 5: 1}), TWO_BY_FOUR, ONE, [6, 7, 1, 2, 3]),
        ("pack", box(8), TWO_BY_FOUR, ONE, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("pack", taken(box(8), {0: 1}), islands(6, 2), ONE, [1, 2, 3, 4, 5, 6]),
        ("pack", taken(box(8), {7: 1}), EIGHT["4x2"], ONE, [6, 0, 1, 2, 3, 4, 5]),
        ("pack", taken(box(8), {2: 1}), EIGHT["PCIe switches"], ONE, [0, 1, 3, 4]),
        ("pack", taken(box(8), {6: 1}), EIGHT["NUMA nodes"], ONE, [4, 5, 7, 0]),
        ("pack", taken(box(8), {7: HALF}), TWO_BY_FOUR, ONE, [4, 5, 6, 0]),
        ("pack", box(4), NOTHING_KNOWN, ONE, [0, 1, 2, 3]),
        ("pack", mixed(), NOTHING_KNOWN, ONE, [4, 5, 2, 3, 0, 1]),
        # pack of shares, of slices
        ("pack", taken(box(3), {2: HALF}), NOTHING_KNOWN, QUARTERS, [2, 2, 0, 0, 0]),
        ("pack", taken(box(3), {1: QUARTER, 2: HALF}), NOTHING_KNOWN, HALVES, [2, 1, 0]),
        ("pack", sliced(0, 2), NOTHING_KNOWN, SLICE, [1, 1, 0, 0, 0, 0]),
        # spread of whole cards
        ("spread", box(8), TWO_BY_FOUR, ONE, [0, 4, 1, 5, 2, 6, 3, 7]),
        ("spread", taken(box(8), {0: 1}), TWO_BY_FOUR, ONE, [4, 1, 5, 2]),
        ("spread", box(8), EIGHT["4x2"], ONE, [0, 2, 4, 6, 1, 3, 5, 7]),
        ("spread", taken(box(6), {0: 1, 4: 1}), islands(4, 2), ONE, [1, 2, 5, 3]),
        ("spread", box(8), EIGHT["fully linked"], ONE, [0, 1, 2, 3]),
        # spread of shares, of slices
        ("spread", box(3), NOTHING_KNOWN, HALVES, [0, 1, 2, 0, 1, 2]),
        ("spread", taken(box(3), {0: HALF}), NOTHING_KNOWN, QUARTERS, [1, 2, 1, 2, 0]),
        ("spread", sliced(0, 2), NOTHING_KNOWN, SLICE, [0, 0, 0, 1, 0, 1]),
    ],
)  # fmt: skip
def test_one_after_the_other(
    policy: str, cards: list[Card], topology: Topology, request_: Request, given_: list[int]
) -> None:
    assert give(policy, cards, request_, topology, len(given_)) == [(i,) for i in given_]


@pytest.mark.parametrize(
    ("policy", "given_"),
    [("pack", (6, 7, 1)), ("spread", (1, 2, 6)), ("smallest-that-fits", (1, 2, 3))],
)
def test_several_cards_at_once(policy: str, given_: tuple[int, ...]) -> None:
    cards = taken(box(8), {0: 1, 4: 1, 5: 1})
    assert give(policy, cards, Request(3), TWO_BY_FOUR) == [given_]


@pytest.mark.parametrize("policy", POLICIES)
def test_own_cards_first_a_display_last_then_the_hubs_order(policy: str) -> None:
    cards = box(4)
    for changes, first in (
        ({"order": [3, 1, 2, 0]}, 3),
        ({"own": [False, False, True, False]}, 2),
        ({"own": [False, False, True, False], "display": [False, False, True, False]}, 2),
        ({"display": [True, False, False, False]}, 1),
        ({"memory_mib": [40960, 40960, 23034, 40960]}, 2),
    ):
        changed = [
            replace(c, **{k: values[c.index] for k, values in changes.items()})  # type: ignore[arg-type]
            for c in cards
        ]
        for request in (ONE, Request(share=HALF)):
            assert give(policy, changed, request) == [(first,)], (changes, request)


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.sampled_from([Fraction(0), HALF, Fraction(1)]), min_size=8, max_size=8),
    st.sampled_from(sorted(EIGHT)),
    st.integers(1, 4),
    st.sampled_from([Fraction(1), HALF]),
    st.data(),
)
def test_a_policy_gives_what_there_is_whatever_its_order(
    policy: str,
    loads: list[Fraction],
    machine: str,
    count: int,
    share: Fraction,
    data: st.DataObject,
) -> None:
    cards = taken(box(8), dict(enumerate(loads)))
    fits = [c for c in cards if c.load + share <= 1]
    request, topology, policies = Request(count, share), EIGHT[machine], Policies(policy, policy)
    found = place(request, cards, topology, policies)
    assert isinstance(found, Placement) is (len(fits) >= count)
    assert found == place(request, data.draw(st.permutations(cards)), topology, policies)
    if isinstance(found, Placement):
        assert len(set(found.devices)) == count
        assert set(found.devices) <= {c.uuid for c in fits}


# -- groups ----------------------------------------------------------------------------------------


def members(cards: Sequence[Card], topology: Topology) -> list[list[str]]:
    found: dict[object, list[str]] = {}
    for uuid, group in groups_of(cards, topology).items():
        found.setdefault(group.place, []).append(uuid)
        assert group.size >= group.used + group.free
    return sorted(sorted(uuids) for uuids in found.values())


def test_groups_are_by_the_nearest_joint_that_cards_have() -> None:
    topology = Topology(
        {
            **islands(2).joints,
            frozenset(("GPU-01", "GPU-02")): Joint(Tier.SWITCH),
            frozenset(("GPU-02", "GPU-03")): Joint(Tier.SWITCH),
            frozenset(("GPU-04", "GPU-05")): Joint(Tier.NUMA),
        }
    )
    assert members(box(7), topology) == [
        ["GPU-00", "GPU-01"], ["GPU-02", "GPU-03"], ["GPU-04", "GPU-05"], ["GPU-06"],
    ]  # fmt: skip
    whole = [replace(c, sliced=True) if c.index < 1 else c for c in box(2)]
    slices = [c for c in sliced(0, 0) if c.index < 1]
    assert members([*whole, *slices], NOTHING_KNOWN) == [
        ["GPU-01"],
        [c.uuid for c in slices],
    ]


def test_a_group_tells_what_of_it_is_used_and_free() -> None:
    cards = taken(box(4), {0: 1, 1: HALF})
    cards[2] = replace(cards[2], unavailable="ill")
    group = groups_of(cards, islands(4))["GPU-03"]
    assert (group.size, group.used, group.free) == (4, 2, 1)


# -- slices ----------------------------------------------------------------------------------------


def test_slices_are_asked_for_by_profile_and_cards_are_not_slices() -> None:
    cards = [replace(box(1)[0], sliced=True), *sliced(0, 0)[:2]]
    bigger = replace(cards[2], uuid="MIG-3g", mig_profile="3g.20gb", memory_mib=20096)
    other = replace(cards[2], uuid="MIG-me", mig_profile="1g.10gb+me")
    everything = [*cards, bigger, other]

    def uuids(**asked: object) -> set[str]:
        got = place(Request(**asked), everything)  # type: ignore[arg-type]
        return set(got.devices) if isinstance(got, Placement) else set()

    assert uuids(count=2, mig_profile="1g.10gb") == {"MIG-00", "MIG-01"}
    assert uuids(mig_profile="3G.20GB") == {"MIG-3g"}
    assert uuids(mig_profile="1g.10gb+me") == {"MIG-me"}
    assert uuids(mig_profile="1g.10gb", models=("*A100*",), min_memory_mib=9000)
    assert not uuids(mig_profile="1g.10gb", models=("*H100*",))
    assert not uuids(mig_profile="1g.10gb", min_memory_mib=20_000)
    assert not uuids(count=1), "the card itself is sliced"
    assert not suits(cards[0], ONE)
    assert not has_room(cards[0], ONE)
