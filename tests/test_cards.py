"""Devices, claims and reservations become cards with a load."""

from __future__ import annotations

from fractions import Fraction

from fakes.rows import HUB, OTHER_HUB, cards, claim, listing, ours, sliced
from gpuspawner.attempts import Attempt, Attempts
from gpuspawner.cards import SLICED, holdings, see_cards
from gpuspawner.claims import Claim, Claims, Survey, read_claims
from gpuspawner.devices import Device, Inventory
from gpuspawner.health import WELL, Condition
from gpuspawner.states import CardState, State

HALF = Fraction(1, 2)


def in_flight(*many: Attempt) -> Attempts:
    attempts = Attempts()
    for one in many:
        attempts.add(one)
    return attempts


def attempt(lease: str, *devices: str, user: str = "ada", server: str = "") -> Attempt:
    return Attempt(lease, devices, Fraction(1), (user, server))


def loads(claims: list[Claim], attempts: Attempts, inventory: Inventory) -> dict[str, Fraction]:
    return {c.uuid: c.load for c in see_cards(inventory, claims, attempts, HUB)}


def read(*rows: object) -> Claims:
    return read_claims(Survey(listing(*rows)), cards(4), HUB)  # type: ignore[arg-type]


def test_claims_add_up() -> None:
    claims = [claim("a", ["GPU-0"], size=HALF), claim("b", ["GPU-0", "GPU-1"], size=HALF)]
    assert loads(claims, Attempts(), cards(3)) == {"GPU-0": 1, "GPU-1": HALF, "GPU-2": 0}


def test_a_reservation_and_its_own_container_count_once() -> None:
    claims = list(read(ours("GPU-0", lease="L", state="running")).claims)
    assert loads(claims, in_flight(attempt("L", "GPU-0")), cards(1)) == {"GPU-0": 1}
    assert loads(claims, in_flight(attempt("M", "GPU-0")), cards(1)) == {"GPU-0": 2}


def test_another_hubs_container_with_the_same_lease_is_not_hidden() -> None:
    claims = list(read(ours("GPU-0", lease="L", hub=OTHER_HUB)).claims)
    assert loads(claims, in_flight(attempt("L", "GPU-1")), cards(2)) == {"GPU-0": 1, "GPU-1": 1}


def test_slices_are_devices_and_their_card_is_never_offered() -> None:
    card, first, second, whole = see_cards(sliced(), [], Attempts(), HUB)
    assert card.sliced
    assert card.unavailable == SLICED
    assert (whole.sliced, whole.unavailable, whole.mig_profile) == (False, "", "")
    for one, uuid in ((first, "MIG-a"), (second, "MIG-b")):
        assert (one.uuid, one.index, one.parent) == (uuid, 0, "GPU-0")
        assert (one.mig_profile, one.memory_mib, one.unavailable) == ("1g.10gb", 9856, "")


def test_slices_and_parent_weigh_on_each_other_in_claims_and_reservations() -> None:
    def seen(*devices: str) -> dict[str, Fraction]:
        claimed = loads([claim("a", devices)], Attempts(), sliced())
        assert loads([], in_flight(attempt("L", *devices)), sliced()) == claimed
        return claimed

    assert seen("MIG-a") == {"GPU-0": 1, "MIG-a": 1, "MIG-b": 0, "GPU-1": 0}
    assert seen("GPU-0") == {"GPU-0": 1, "MIG-a": 1, "MIG-b": 1, "GPU-1": 0}
    assert seen("MIG-a", "MIG-b") == {
        "GPU-0": 1,
        "MIG-a": 1,
        "MIG-b": 1,
        "GPU-1": 0,
    }


def test_a_slice_stands_as_its_card_does_or_by_itself() -> None:
    inventory = sliced()

    def states(**conditions: Condition) -> dict[str, tuple[bool, bool]]:
        named = {uuid.replace("_", "-"): c for uuid, c in conditions.items()}
        seen = see_cards(inventory, [], Attempts(), HUB, conditions=named)
        return {c.uuid: (bool(c.unavailable), c.settling) for c in seen if c.parent}

    ill = Condition(CardState.ILL, "recovery action", 3, CardState.ILL)
    dirty = Condition(CardState.DIRTY, "a stranger", 3, CardState.DIRTY)
    back = Condition(CardState.SETTLING, "it was ill", 2, CardState.ILL)
    leaving = Condition(CardState.SETTLING, "its last holder is leaving")
    well = (False, False)
    assert states(GPU_0=ill, MIG_a=WELL, MIG_b=WELL) == dict.fromkeys(
        ("MIG-a", "MIG-b"), (True, False)
    )
    assert states(GPU_0=back, MIG_a=WELL, MIG_b=WELL) == dict.fromkeys(
        ("MIG-a", "MIG-b"), (True, True)
    )
    assert states(GPU_0=dirty, MIG_a=dirty, MIG_b=WELL) == {"MIG-a": (True, False), "MIG-b": well}
    assert states(GPU_0=leaving, MIG_a=leaving, MIG_b=WELL) == {
        "MIG-a": (True, True),
        "MIG-b": well,
    }
    assert states(GPU_0=dirty)["MIG-b"] == (True, False), "not looked at by itself"


def test_slices_of_a_card_that_is_gone_are_counted_and_not_offered() -> None:
    first, whole = sliced().devices
    holder = claim("a", ["MIG-a"], state="running")
    gone = Condition(CardState.GONE, "not named")
    seen = see_cards(
        Inventory((whole,)), [holder], Attempts(), HUB, gone=[first], conditions={"GPU-0": gone}
    )
    assert {c.uuid: (c.load, c.unavailable) for c in seen if c.parent} == {
        "MIG-a": (Fraction(1), "not named"),
        "MIG-b": (Fraction(0), "not named"),
    }


def test_an_mps_daemon_leaves_no_room_for_a_whole_holder() -> None:
    daemon = claim("m", ["GPU-0"], size=0, bars_exclusive=True)
    assert loads([daemon], Attempts(), cards(1)) == {"GPU-0": 1}


def test_strangers_are_told_apart() -> None:
    (card,) = see_cards(cards(1), [claim("x", ["GPU-0"], whose="outsider")], Attempts(), HUB)
    assert card.foreign
    (card,) = see_cards(cards(1), [claim("x", ["GPU-0"], whose="sibling")], Attempts(), HUB)
    assert not card.foreign


def test_an_ill_or_lost_card_is_not_offered_and_hides_no_other() -> None:
    inventory = Inventory(
        (
            Device("", 0, error="GPU is lost"),
            Device("GPU-1", 1, recovery_action="gpu-reset"),
            Device("GPU-2", 2, recovery_action="none", mig=False),
        )
    )
    seen = see_cards(inventory, [], Attempts(), HUB)
    assert [bool(c.unavailable) for c in seen] == [True, True, False]


def test_hubs_try_equal_cards_in_orders_of_their_own_that_stay() -> None:
    def order(hub: str) -> list[str]:
        seen = see_cards(cards(8), [], Attempts(), hub)
        return [c.uuid for c in sorted(seen, key=lambda c: c.order)]

    orders = {hub: tuple(order(hub)) for hub in ("a", "b", "c", "d")}
    assert len(set(orders.values())) == len(orders)
    assert tuple(order("a")) == orders["a"]


def test_holdings_are_those_of_this_hubs_servers_and_attempts() -> None:
    rows = [
        ours("GPU-0", "GPU-1", id="1", lease="L1", user="ada", server="two", state="running"),
        ours("GPU-2", id="2", lease="L2", user="ada", server="flight"),
        ours("GPU-3", id="3", lease="L3", user="bea", state="running"),
        ours("GPU-3", id="4", lease="L4", user="ada", hub=OTHER_HUB, state="running"),
        ours("GPU-3", id="5", lease="L5", user="ada", server="old", state="running"),
        ours(id="6", lease="L6", user="ada", server="cpu", state="running"),
        ours("GPU-4", id="7", lease="L10", user="ada", server="over", state="exited"),
        ours("GPU-4", id="8", lease="L11", user="ada", server="half", share="1/2", state="running"),
    ]
    given_up = attempt("L8", "GPU-3", server="given-up")
    given_up.state = State.RELEASING
    flying = in_flight(
        attempt("L2", "GPU-2", server="flight"),
        attempt("L7", "GPU-3", user="bea"),
        attempt("L9", server="cpu2"),
        given_up,
    )
    held = holdings(rows, HUB, flying, leaving={"L5"})
    assert [(h.user, h.server, float(h.cards)) for h in held] == [
        ("ada", "cpu", 0),
        ("ada", "cpu2", 0),
        ("ada", "flight", 1),
        ("ada", "half", 0.5),
        ("ada", "two", 2),
        ("bea", "", 1),
        ("bea", "", 1),
    ]


def test_a_renamed_user_keeps_what_they_hold_and_a_new_one_of_that_name_has_nothing() -> None:
    rows = [ours("GPU-0", id="1", lease="L1", user="ann", server="mine", state="running")]
    held = holdings(rows, HUB, Attempts(), owners={"L1": ("anna", "mine")})
    assert [(h.user, h.server, float(h.cards)) for h in held] == [("anna", "mine", 1)]
