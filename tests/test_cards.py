"""Devices, claims and reservations become cards with a load."""

from __future__ import annotations

from fractions import Fraction

from fakes.rows import HUB, OTHER_HUB, cards, claim, listing, ours, sliced
from gpuspawner.attempts import Attempt, Attempts
from gpuspawner.cards import SLICED, holdings, see_cards
from gpuspawner.claims import Claim, Claims, Survey, read_claims
from gpuspawner.devices import Device, Inventory
from gpuspawner.states import State

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


def test_slices_and_parent_weigh_on_each_other_in_claims_and_reservations() -> None:
    (parent, whole) = see_cards(sliced(), [claim("a", ["MIG-a"])], Attempts(), HUB)
    assert [parent.load, whole.load] == [1, 0]
    assert parent.unavailable == SLICED
    (parent, _) = see_cards(sliced(), [], in_flight(attempt("L", "MIG-b")), HUB)
    assert parent.load == 1


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
