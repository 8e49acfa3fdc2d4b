"""What was seen inside a container, held against the promise: tables, and what always holds."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.devices import Device, Inventory, Slice
from gpuspawner.sight import (
    SCRIPT,
    Access,
    Asked,
    Finding,
    Node,
    Seen,
    compare,
    lost,
    read_asked,
    read_look,
    unkept,
)

CDI, HOOK, NOTHING = Asked(driver="cdi"), Asked(driver="nvidia"), Asked()
OPEN, DENIED, DEAD, UNCLEAR = Access.OPEN, Access.DENIED, Access.DEAD, Access.UNCLEAR


def inventory(*minors: int | None, source: str = "nvml") -> Inventory:
    """Cards GPU-0, GPU-1…, of these minors; each has a slice MIG-<n>."""
    return Inventory(
        tuple(
            Device(
                f"GPU-{n}",
                n,
                minor=minor,
                slices=(Slice(f"MIG-{n}", "1g.10gb", 1, f"GPU-{n}", 0),),
            )
            for n, minor in enumerate(minors)
        ),
        source=source,
    )


def seen(*opened: int, minors: dict[str, int] | None = None, **others: Access) -> Seen:
    """``seen(0, n3=DENIED)``: card 0 opens, card 3 does not."""
    nodes = {n: Node(n, OPEN) for n in opened}
    for name, access in others.items():
        nodes[int(name[1:])] = Node(int(name[1:]), access, "words")
    return Seen(nodes, minors or {})


TABLE: list[tuple[str, tuple[str, ...], Inventory, Seen, Asked, Finding]] = [
    # what, promised, inventory, seen, asked, finding
    ("cpu", (), Inventory(), seen(), NOTHING, Finding.EXACT),
    ("cpu, one card", (), Inventory(), seen(0), NOTHING, Finding.MORE),
    ("cpu, a closed one", (), Inventory(), seen(n0=DENIED), NOTHING, Finding.EXACT),
    ("cpu, a dead one", (), Inventory(), seen(n0=DEAD), NOTHING, Finding.EXACT),
    ("its card", ("GPU-1",), inventory(0, 1), seen(1), CDI, Finding.EXACT),
    ("two", ("GPU-0", "GPU-1"), inventory(0, 1), seen(0, 1), HOOK, Finding.EXACT),
    ("minor is not index", ("GPU-0",), inventory(5, 0), seen(5), CDI, Finding.EXACT),
    ("another's", ("GPU-0",), inventory(5, 0), seen(0), CDI, Finding.MORE),
    ("and another's", ("GPU-0",), inventory(0, 1), seen(0, 1), CDI, Finding.MORE),
    ("and a closed one", ("GPU-0",), inventory(0, 1), seen(0, n1=DENIED), HOOK, Finding.EXACT),
    ("a card of nobody", ("GPU-0",), inventory(0), seen(0, 7), CDI, Finding.MORE),
    ("one of two", ("GPU-0", "GPU-1"), inventory(0, 1), seen(1), CDI, Finding.FEWER),
    ("none by CDI", ("GPU-0",), inventory(0), seen(), CDI, Finding.FEWER),
    ("none by the hook", ("GPU-0",), inventory(0), seen(), HOOK, Finding.FEWER),
    ("none asked", ("GPU-0",), inventory(0), seen(), NOTHING, Finding.UNCLEAR),
    (
        "simulated by the hook",
        ("GPU-0",),
        inventory(0, source="simulated"),
        seen(),
        HOOK,
        Finding.UNCLEAR,
    ),
    ("a fixed list", ("GPU-0",), inventory(0, source="fixed"), seen(), HOOK, Finding.UNCLEAR),
    (
        "a fixed list on a driver",
        ("GPU-0",),
        inventory(0, source="fixed"),
        seen(minors={"GPU-0": 0}),
        HOOK,
        Finding.FEWER,
    ),
    ("denied", ("GPU-0",), inventory(0), seen(n0=DENIED), HOOK, Finding.FEWER),
    ("denied, not asked", ("GPU-0",), inventory(0), seen(n0=DENIED), NOTHING, Finding.FEWER),
    ("dead", ("GPU-0",), inventory(0), seen(n0=DEAD), CDI, Finding.FEWER),
    ("unclear", ("GPU-0",), inventory(0), seen(n0=UNCLEAR), CDI, Finding.UNCLEAR),
    ("no minor", ("GPU-0",), inventory(None), seen(3), CDI, Finding.UNCLEAR),
    ("no minor, nothing", ("GPU-0",), inventory(None), seen(), CDI, Finding.UNCLEAR),
    ("no minor, two", ("GPU-0",), inventory(None), seen(3, 4), CDI, Finding.MORE),
    (
        "no minor, but the driver's",
        ("GPU-0",),
        inventory(None),
        seen(3, minors={"GPU-0": 3, "GPU-9": 4}),
        CDI,
        Finding.EXACT,
    ),
    (
        "the driver knows better",
        ("GPU-0",),
        inventory(0, 1),
        seen(1, minors={"GPU-0": 1, "GPU-1": 0}),
        CDI,
        Finding.EXACT,
    ),
    ("unknown card", ("GPU-9",), inventory(0), seen(0), CDI, Finding.UNCLEAR),
    ("a slice", ("MIG-1",), inventory(0, 1), seen(1), CDI, Finding.EXACT),
    ("two slices of one", ("MIG-1", "GPU-1"), inventory(0, 1), seen(1), CDI, Finding.EXACT),
    ("a slice, another's card", ("MIG-1",), inventory(0, 1), seen(0, 1), CDI, Finding.MORE),
    ("privileged", (), Inventory(), seen(0, 1), Asked(privileged=True), Finding.UNCLEAR),
]


@pytest.mark.parametrize(
    ("promised", "cards", "looked", "asked", "finding"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_a_look_against_the_promise(
    promised: tuple[str, ...], cards: Inventory, looked: Seen, asked: Asked, finding: Finding
) -> None:
    sight = compare(promised, cards, looked, asked)
    assert sight.finding is finding, sight.reason
    assert bool(sight.reason) is (finding is not Finding.EXACT)


ACCESS = st.sampled_from(Access)
LOOKS = st.builds(
    lambda nodes: Seen({n: Node(n, access, "words") for n, access in nodes.items()}),
    st.dictionaries(st.integers(0, 5), ACCESS, max_size=6),
)
PROMISES = st.frozensets(st.sampled_from([f"GPU-{n}" for n in range(4)]), max_size=4)
SOURCES = st.sampled_from(["nvml", "fixed", "simulated"])


@given(PROMISES, LOOKS, SOURCES, st.sampled_from([CDI, HOOK, NOTHING]))
def test_every_open_card_that_was_not_promised_is_found(
    promised: frozenset[str], looked: Seen, source: str, asked: Asked
) -> None:
    sight = compare(promised, inventory(0, 1, 2, 3, source=source), looked, asked)
    strange = {f"GPU-{n}" for n in looked.opened} - promised
    assert (sight.finding is Finding.MORE) is bool(strange)


@given(PROMISES, LOOKS, SOURCES, st.sampled_from([CDI, HOOK, NOTHING]))
def test_exact_means_all_of_them_and_nothing_else(
    promised: frozenset[str], looked: Seen, source: str, asked: Asked
) -> None:
    sight = compare(promised, inventory(0, 1, 2, 3, source=source), looked, asked)
    same = {f"GPU-{n}" for n in looked.opened} == promised
    assert (sight.finding is Finding.EXACT) is same


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=4, max_size=4, unique=True),
    PROMISES,
    st.frozensets(st.integers(0, 5)),
)
def test_what_nobody_knows_refuses_no_server(
    minors: list[int | None], promised: frozenset[str], opened: frozenset[int]
) -> None:
    """Whatever the unknown minors are: if some reading makes it right, it is not called wrong."""
    cards = inventory(*minors)
    sight = compare(promised, cards, seen(*opened), CDI)
    known = {cards.by_uuid[uuid].minor for uuid in promised}
    unknown = len(promised) - len(known - {None})
    fits = known - {None} <= opened and len(opened - known) == unknown
    if fits:
        assert sight.finding in (Finding.EXACT, Finding.UNCLEAR)


# -- what is lost later ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looked", "opened", "gone"),
    [
        (seen(1), (1,), ()),
        (seen(1), (), ()),
        (seen(n1=DENIED), (1,), (1,)),
        (seen(n1=DENIED), (), (1,)),
        (seen(n1=DEAD), (1,), (1,)),
        (seen(n1=UNCLEAR), (1,), ()),
        (seen(), (1,), (1,)),
        (seen(), (), ()),
        (seen(n3=DENIED), (), ()),
        (seen(1, n0=DENIED), (1,), ()),
        (seen(n3=DENIED), (3,), (3,)),
    ],
    ids=str,
)
def test_what_could_be_opened_and_can_not_any_more(
    looked: Seen, opened: tuple[int, ...], gone: tuple[int, ...]
) -> None:
    found = lost(("GPU-1",), inventory(0, 1), looked, opened)
    assert tuple(found) == gone
    assert all(found.values())


# -- the script's words ---------------------------------------------------------------------------


def test_the_scripts_words_of_each_shell() -> None:
    looked = read_look(
        "node /dev/nvidia0 c3:0 \n"
        "node /dev/nvidia1 c3:1 /bin/sh: 3: cannot open /dev/nvidia1: Operation not permitted\n"
        "node /dev/nvidia2 - /bin/sh: can't open /dev/nvidia2: Input/output error\n"
        "node /dev/nvidia3 c3:3 /bin/sh: line 3: /dev/nvidia3: No such device or address\n"
        "node /dev/nvidia4 c3:4 /bin/sh: line 3: /dev/nvidia4: Device or resource busy\n"
        "node /dev/nvidia5 c3:5 /bin/sh: line 3: /dev/nvidia5: Permission denied\n"
        "node /dev/nvidia7 c3:9 \n"  # of another name
        "node /dev/nvidia8 1:3 \n"  # not of that driver
        "node /dev/nvidiactl c3:ff \n"
        "card  \t 0  \t GPU-bbd4adeb-4e6c-0ae0-1756-a0350fbc3d9e\n"
        "card  \t 1  \t GPU-????????-????-????-????-????????????\n"
        "card  \n"
        "end\n"
    )
    assert looked is not None
    assert {n: node.access for n, node in looked.nodes.items()} == {
        0: OPEN, 1: DENIED, 2: DEAD, 3: DEAD, 4: UNCLEAR, 5: UNCLEAR, 9: OPEN, 8: OPEN,
    }  # fmt: skip
    assert looked.nodes[1].error == "Operation not permitted"
    assert looked.minors == {"GPU-bbd4adeb-4e6c-0ae0-1756-a0350fbc3d9e": 0}
    assert looked.opened == {0, 8, 9}


@pytest.mark.parametrize("text", ["", "node /dev/nvidia0 c3:0 \n", "the end\n", "sh: not found"])
def test_a_look_that_did_not_end_tells_nothing(text: str) -> None:
    assert read_look(text) is None


@given(st.text())
def test_whatever_a_container_writes_can_be_read(text: str) -> None:
    read_look(f"{text}\nend")
    read_look(text)


def test_the_script_ends_where_there_is_no_card_and_no_path() -> None:
    ran = subprocess.run(
        ["/bin/sh", "-c", SCRIPT],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert read_look(ran.stdout) is not None
    assert not ran.stderr


# -- what the engine keeps ------------------------------------------------------------------------

OURS = {"Driver": "nvidia", "DeviceIDs": ["GPU-1"], "Capabilities": [["gpu"]]}
OTHER = {"Driver": "cdi", "DeviceIDs": ["vendor.org/fpga=0"]}
WANTED: dict[str, Any] = {"DeviceRequests": [OTHER, OURS]}


@pytest.mark.parametrize(
    ("kept", "fine"),
    [
        ([{**OURS, "Count": 0, "Options": {}}], True),
        ([OTHER, OURS], True),
        (None, False),
        ([], False),
        ([OTHER], False),
        ([{**OURS, "DeviceIDs": ["GPU-2"]}], False),
        ([{**OURS, "DeviceIDs": ["GPU-1", "GPU-2"]}], False),
        ([{**OURS, "DeviceIDs": None, "Count": -1}], False),
        ([{**OURS, "Driver": "cdi"}], False),
    ],
)
def test_a_request_that_the_engine_did_not_keep(kept: Any, fine: bool) -> None:
    words = unkept(read_asked(WANTED), {"HostConfig": {"DeviceRequests": kept}})
    assert (words == "") is fine
    if not fine:
        assert "GPU-1" in words


def test_what_was_asked() -> None:
    assert read_asked({}) == Asked()
    assert read_asked(WANTED) == Asked((("nvidia", frozenset({"GPU-1"})),), "nvidia")
    assert read_asked({"DeviceRequests": [OTHER], "Privileged": True}) == Asked(privileged=True)
    by_cdi = {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}
    assert read_asked({"DeviceRequests": [OTHER, by_cdi]}).driver == "cdi"
