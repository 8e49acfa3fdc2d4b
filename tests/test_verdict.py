"""Create, look, start: the verdict on one listing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.rows import cards, claim, sliced
from gpuspawner.claims import Claim
from gpuspawner.devices import Inventory
from gpuspawner.verdict import Verdict, judge, second_look

START, WAIT, YIELD = Verdict.START, Verdict.WAIT, Verdict.YIELD
HALF = Fraction(1, 2)
ONE = cards(2)


@pytest.mark.parametrize(
    ("rivals", "verdict"),
    [
        ([], START),
        ([claim("b", ["GPU-1"])], START),
        ([claim("a", ["GPU-0"], created=999)], YIELD),
        ([claim("z", ["GPU-0"], created=1001)], WAIT),
        # The same second: the id decides.
        ([claim("a", ["GPU-0"])], YIELD),
        ([claim("z", ["GPU-0"])], WAIT),
        # Whoever runs or ran comes first, whenever it was made.
        ([claim("z", ["GPU-0"], created=1001, state="running")], YIELD),
        ([claim("z", ["GPU-0"], created=1001, state="paused")], YIELD),
        ([claim("z", ["GPU-0"], created=1001, state="restarting")], YIELD),
        ([claim("z", ["GPU-0"], created=1001, state="exited")], YIELD),
        # One of two cards is enough.
        ([claim("a", ["GPU-1", "GPU-0"], created=1)], YIELD),
        ([claim("z", ["GPU-0"], whose="outsider")], WAIT),
        ([claim("z", ["GPU-0"], whose="outsider", state="running")], YIELD),
        # An MPS daemon takes nothing and bars a whole card.
        ([claim("a", ["GPU-0"], size=0, bars_exclusive=True, state="running")], YIELD),
    ],
)
def test_one_whole_card(rivals: list[Claim], verdict: Verdict) -> None:
    mine = claim("m", ["GPU-0"])
    assert judge(mine, rivals, ONE) is verdict
    assert judge(mine, [mine, *rivals], ONE) is verdict


@pytest.mark.parametrize(
    ("rivals", "verdict"),
    [
        ([claim("a", ["GPU-0"], size=HALF, state="running")], START),
        ([claim(i, ["GPU-0"], size=HALF, state="running") for i in "ab"], YIELD),
        ([claim(i, ["GPU-0"], size=HALF) for i in "az"], WAIT),
        ([claim(i, ["GPU-0"], size=HALF) for i in "ab"], YIELD),
        ([claim("a", ["GPU-0"], size=0, bars_exclusive=True, state="running")], START),
        ([claim("a", ["GPU-0"], state="running")], YIELD),
    ],
)
def test_half_a_card(rivals: list[Claim], verdict: Verdict) -> None:
    assert judge(claim("m", ["GPU-0"], size=HALF), rivals, ONE) is verdict


def test_an_mps_daemon_yields_to_a_whole_holder_and_not_to_shares() -> None:
    daemon = claim("m", ["GPU-0"], size=0, bars_exclusive=True)
    assert judge(daemon, [claim("a", ["GPU-0"], state="running")], ONE) is YIELD
    assert judge(daemon, [claim("a", ["GPU-0"], size=HALF, state="running")], ONE) is START


def test_a_slice_and_its_parent_exclude_each_other_siblings_do_not() -> None:
    inventory = sliced()
    assert judge(claim("m", ["MIG-a"]), [claim("a", ["GPU-0"])], inventory) is YIELD
    assert judge(claim("m", ["GPU-0"]), [claim("a", ["MIG-b"])], inventory) is YIELD
    assert judge(claim("m", ["MIG-a"]), [claim("a", ["MIG-b"])], inventory) is START
    assert judge(claim("m", ["MIG-a"]), [claim("a", ["GPU-1"])], inventory) is START


@pytest.mark.parametrize(
    ("rival", "clean"),
    [
        (claim("x", ["GPU-0"], whose="outsider", state="running"), False),
        (claim("x", ["GPU-0"], whose="outsider", state="paused"), False),
        (claim("x", ["GPU-1"], whose="outsider", state="running"), True),
        (claim("x", ["GPU-0"], whose="outsider", state="created"), True),
        (claim("x", ["GPU-0"], whose="outsider", state="exited"), True),
        # A rival hub's container yields by itself: it looks before it starts.
        (claim("x", ["GPU-0"], whose="sibling", state="created"), True),
    ],
)
def test_the_second_look_flees_from_running_outsiders_only(rival: Claim, clean: bool) -> None:
    mine = claim("m", ["GPU-0"], state="running")
    assert second_look(mine, [mine, rival], ONE) is clean


SIZES = st.sampled_from([Fraction(1), HALF, Fraction(1, 3), Fraction(0)])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Claim], Inventory]:
    """Claims of which those that run fit together, as they always do."""
    inventory = draw(st.sampled_from([cards(1), cards(2), sliced()]))
    names = [*inventory.by_uuid, *inventory.slice_by_uuid]
    made = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(SIZES)
        one = claim(
            draw(st.sampled_from("abc")) + str(number),
            draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)),
            size=size,
            created=draw(st.integers(1, 3)),
            bars_exclusive=size == 0,
        )
        made.append(one)
    return made, inventory


def fits(group: list[Claim], inventory: Inventory) -> bool:
    """The law itself, written without the product's code: no device is exceeded."""
    parent = {s.uuid: s.parent for s in inventory.slice_by_uuid.values()}
    for place, one in enumerate(group):
        for other in group[place + 1 :]:
            for a in one.devices:
                for b in other.devices:
                    clash = a == b or parent.get(a) == b or parent.get(b) == a
                    if clash and one.size == 1 and other.bars_exclusive:
                        return False
                    if clash and other.size == 1 and one.bars_exclusive:
                        return False
                    if clash and one.size == 1 and other.size > 0:
                        return False
                    if clash and other.size == 1 and one.size > 0:
                        return False
    for device in {d for one in group for d in one.devices}:
        if sum(one.size for one in group if device in one.devices) > 1:
            return False
    return True


@given(worlds())
def test_those_told_to_start_by_one_listing_fit_together(
    world: tuple[list[Claim], Inventory],
) -> None:
    claims, inventory = world
    starters = [c for c in claims if judge(c, claims, inventory) is START]
    assert fits(starters, inventory)


@given(worlds())
def test_nobody_waits_for_one_who_waits_for_them(world: tuple[list[Claim], Inventory]) -> None:
    """The first in the order is never told to yield: of any set somebody gets on."""
    claims, inventory = world
    first = min(claims, key=lambda c: c.row.order)
    assert judge(first, claims, inventory) is not YIELD
    # Once all who must have yielded, it starts.
    left = [c for c in claims if judge(c, claims, inventory) is not YIELD]
    last = max(left, key=lambda c: c.row.order)
    assert judge(last, left, inventory) in (START, YIELD)


@given(worlds(), st.data())
def test_a_longer_listing_never_turns_a_no_into_a_start(
    world: tuple[list[Claim], Inventory], data: st.DataObject
) -> None:
    claims, inventory = world
    mine = data.draw(st.sampled_from(claims))
    seen = [c for c in claims if data.draw(st.booleans())]
    rank = {START: 0, WAIT: 1, YIELD: 2}
    few, all_of_them = judge(mine, seen, inventory), judge(mine, claims, inventory)
    assert rank[few] <= rank[all_of_them]
