"""What a listing says of who holds what: the table of the protocol, row by row."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from fakes.rows import HUB, IMAGE, OTHER_HUB, cards, claim, foreign, listing, ours, sliced
from gpuspawner.asks import Asks
from gpuspawner.claims import (
    Claims,
    Detail,
    Row,
    Survey,
    Times,
    describe,
    loads,
    needs_detail,
    read_claims,
)
from gpuspawner.devices import Inventory, Process

INVENTORY = cards(4)
TIMES = Times(created_grace_seconds=120, release_delay_seconds=10)
HOLDS_0 = Asks(manner="holds", ids=frozenset({"GPU-0"}), why="device request")


def read(
    *rows: Row, at: float = 1000.0, inventory: Inventory = INVENTORY, **details: Detail
) -> Claims:
    return read_claims(Survey(listing(*rows, at=at), details), inventory, HUB, TIMES)


@pytest.mark.parametrize("state", ["created", "running", "paused", "restarting", "stopping", ""])
def test_ours_claims_by_its_labels_without_inspection(state: str) -> None:
    (found,) = read(ours("GPU-1", "GPU-2", state=state)).claims
    assert found.devices == {"GPU-1", "GPU-2"}
    assert [found.size, found.whose, found.lease] == [1, "mine", "L1"]


@pytest.mark.parametrize("state", ["removing", "dead"])
def test_what_is_removed_claims_nothing(state: str) -> None:
    assert not read(ours("GPU-1", state=state), foreign(state=state)).claims


def test_ours_stays_a_claim_however_long_it_is_only_created() -> None:
    assert read(ours("GPU-1", created=1), at=1e9).claims


@pytest.mark.parametrize(
    ("detail", "claims"),
    [
        (Detail(finished_at=995.0), 1),
        (Detail(finished_at=990.0), 1),
        (Detail(finished_at=989.9), 0),
        (Detail(finished_at=None), 1),
        (Detail(missing=True), 0),
    ],
)
def test_an_exited_one_claims_until_ten_seconds_after_its_end(detail: Detail, claims: int) -> None:
    assert len(read(ours("GPU-1", state="exited"), c1=detail).claims) == claims
    outside = Detail(HOLDS_0, finished_at=detail.finished_at, missing=detail.missing)
    assert len(read(foreign(state="exited"), x1=outside).claims) == claims


def test_an_exited_one_without_inspection_is_unknown_not_free() -> None:
    with pytest.raises(KeyError):
        read(ours("GPU-1", state="exited"))
    with pytest.raises(KeyError):
        read(foreign())


@pytest.mark.parametrize(
    ("created", "detail", "claims"),
    [
        (1000, Detail(HOLDS_0), 1),
        (880, Detail(HOLDS_0), 1),
        (879, Detail(HOLDS_0), 0),
        (1000, Detail(HOLDS_0, error="could not select device driver"), 0),
        (1000, Detail(missing=True), 0),
    ],
)
def test_a_created_outsider_claims_for_the_grace(created: int, detail: Detail, claims: int) -> None:
    found = read(foreign(state="created", created=created), x1=detail).claims
    assert len(found) == claims


@pytest.mark.parametrize("state", ["running", "paused", "restarting"])
def test_a_live_outsider_claims_a_whole_card_whatever_its_age(state: str) -> None:
    detail = Detail(HOLDS_0, error="an old error", finished_at=1.0)
    (found,) = read(foreign(state=state, created=1), at=1e9, x1=detail).claims
    assert [found.size, found.whose, found.lease] == [1, "outsider", ""]
    assert found.why == "device request"


@pytest.mark.parametrize("manner", ["observes", "may-use", "nothing"])
def test_an_outsider_that_does_not_hold_claims_nothing(manner: str) -> None:
    asks = Asks(manner=manner, ids=frozenset({"GPU-0"}))  # type: ignore[arg-type]
    assert not read(foreign(), x1=Detail(asks)).claims


@pytest.mark.parametrize(
    ("process", "held"),
    [
        (Process(1, "compute", container_id="x1"), {"GPU-1"}),
        (Process(1, "graphics", container_id="x1"), set()),
        (Process(1, "compute", container_id="x2"), set()),
        (Process(1, "compute"), set()),
    ],
)
def test_one_that_may_use_any_card_holds_those_it_works_on(
    process: Process, held: set[str]
) -> None:
    first, second = cards(2).devices
    inventory = Inventory((first, replace(second, processes=(process,))))
    detail = Detail(Asks(manner="may-use", why="privileged or /dev"))
    found = read(foreign(), inventory=inventory, x1=detail).claims
    assert [c.devices for c in found] == ([held] if held else [])
    assert {c.size for c in found} <= {1}
    assert {c.why for c in found} <= {"at work on the card; privileged or /dev"}


def test_one_that_may_use_any_card_holds_the_slice_it_works_on() -> None:
    card, whole = sliced().devices
    first, second = card.slices
    busy = replace(second, processes=(Process(1, "compute", container_id="x1"),))
    inventory = Inventory((replace(card, slices=(first, busy)), whole))
    (found,) = read(foreign(), inventory=inventory, x1=Detail(Asks(manner="may-use"))).claims
    assert found.devices == {"MIG-b"}


def test_a_commit_of_ours_is_an_outsider() -> None:
    """``docker commit`` copies the labels into its image, but that image has another id."""
    copy = ours("GPU-1", image_id="sha256:" + "2" * 64, state="running")
    assert not copy.ours
    assert not copy.lease
    assert needs_detail(copy)
    (found,) = read(copy, c1=Detail(HOLDS_0)).claims
    assert [found.whose, found.devices] == ["outsider", {"GPU-0"}]


def test_podman_writes_image_ids_without_the_algorithm() -> None:
    assert ours("GPU-1", image_id=IMAGE.removeprefix("sha256:")).ours


@pytest.mark.parametrize("image", ["", "sha256:"])
def test_a_container_without_an_image_id_is_nobody_of_ours(image: str) -> None:
    row = ours("GPU-1", image_id=image)
    forged = Row("f", 1, "", "running", {"gpuspawner.hub": HUB, "gpuspawner.image": ""})
    assert not row.ours
    assert not forged.ours


def test_another_hubs_container_is_a_sibling() -> None:
    (found,) = read(ours("GPU-1", hub=OTHER_HUB)).claims
    assert found.whose == "sibling"
    assert not found.row.mine(HUB)


def test_roles() -> None:
    (daemon,) = read(ours("GPU-1", role="mps", state="running")).claims
    assert [daemon.size, daemon.bars_exclusive] == [0, True]
    assert not read(ours("GPU-1", role="probe"), ours("GPU-1", role="observer")).claims


@pytest.mark.parametrize(
    ("label", "size"),
    [
        ("1", "1"),
        ("1/2", "1/2"),
        ("1/3", "1/3"),
        ("0.25", "1/4"),
        # What can't be read is a whole card: never more room than is certain.
        ("", "1"),
        ("half", "1"),
        ("1/0", "1"),
        ("0", "1"),
        ("-1/2", "1"),
        ("3/2", "1"),
        ("nan", "1"),
        ("inf", "1"),
    ],
)
def test_share(label: str, size: str) -> None:
    (found,) = read(ours("GPU-1", share=label)).claims
    assert found.size == Fraction(size)


def test_a_server_without_a_gpu_claims_nothing() -> None:
    assert not read(ours(), ours(devices="", state="running")).claims


def test_a_device_we_do_not_know_is_still_in_its_holders_hands() -> None:
    (found,) = read(ours("GPU-of-yesterday")).claims
    assert found.devices == {"GPU-of-yesterday"}


def test_ids_that_nothing_answers_to_are_reported() -> None:
    asks = Asks(manner="holds", ids=frozenset({"GPU-0", "GPU-x"}), minors=frozenset({9}))
    found = read(foreign(), x1=Detail(asks))
    assert found.claims[0].devices == {"GPU-0"}
    assert found.dangling == {"x1": ("GPU-x", "/dev/nvidia9")}


def test_only_what_the_list_cannot_tell_is_inspected() -> None:
    states = ["created", "running", "paused", "restarting", "exited", "removing", "dead"]
    asked = {s for s in states if needs_detail(ours("GPU-1", state=s))}
    assert asked == {"exited"}
    asked = {s for s in states if needs_detail(foreign(state=s))}
    assert asked == {"created", "running", "paused", "restarting", "exited"}


def test_a_parent_weighs_on_its_slices_and_they_on_it_but_not_on_each_other() -> None:
    inventory = sliced()
    parent, a, b = (claim(i, [i]) for i in ("GPU-0", "MIG-a", "MIG-b"))
    everything = [parent, a, b, claim("x", ["GPU-1"])]
    assert loads(everything, inventory, "GPU-0") == [parent, a, b]
    assert loads(everything, inventory, "MIG-a") == [parent, a]
    assert loads(everything, inventory, "MIG-b") == [parent, b]


def test_the_admins_summary_names_no_user_of_a_container_that_is_not_ours() -> None:
    mine, other = read(
        ours("GPU-1", user="ada", server="s", profile="one-gpu", state="running"),
        foreign(labels={"gpuspawner.user": "forged"}),
        x1=Detail(HOLDS_0),
    ).claims
    assert describe(mine)["user"] == "ada"
    assert describe(mine)["name"] == "c1"
    assert describe(mine)["devices"] == ["GPU-1"]
    assert (describe(other)["user"], describe(other)["name"]) == ("", "")
