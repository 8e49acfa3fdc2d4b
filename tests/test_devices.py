"""Devices: a reading survives JSON, lookups agree with it, and neighbours share silicon."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.devices import TOPOLOGY_LEVELS, Device, Inventory, Link, Process, Slice

maybe_mib = st.none() | st.integers(0, 200_000)
processes = st.lists(
    st.builds(
        Process,
        pid=st.integers(1, 2**22),
        kind=st.sampled_from(["compute", "graphics"]),
        used_mib=maybe_mib,
        container_id=st.none() | st.just("a1" * 32),
    ),
    max_size=2,
).map(tuple)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Up to four cards; some lost and nameless, some sliced."""
    devices = []
    for index in range(draw(st.integers(0, 4))):
        uuid = draw(st.sampled_from([f"GPU-{index}", f"GPU-{index}", ""]))
        slices = tuple(
            Slice(f"MIG-{index}-{n}", "1g.5gb", draw(maybe_mib), uuid, n, draw(processes))
            for n in range(draw(st.integers(0, 3)) if uuid else 0)
        )
        devices.append(
            Device(
                uuid=uuid,
                index=index,
                model=draw(st.text(max_size=5)),
                minor=draw(st.none() | st.integers(0, 8)),
                memory_mib=draw(maybe_mib),
                mig=bool(slices),
                slices=slices,
                processes=draw(processes),
                recovery_action=draw(st.sampled_from([None, "none", "gpu-reset"])),
                display=draw(st.booleans()),
                error="" if uuid else "GPU is lost",
            )
        )
    named = [d.uuid for d in devices if d.uuid]
    links = tuple(
        Link(a, b, draw(st.none() | st.integers(0, 18)), ancestor=draw(ancestors))
        for i, a in enumerate(named)
        for b in named[i + 1 :]
    )
    return Inventory(tuple(devices), links, "550.1", "12.4", complete=draw(st.booleans()))


ancestors = st.none() | st.sampled_from(TOPOLOGY_LEVELS)


@given(inventories())
def test_a_reading_survives_json(inventory: Inventory) -> None:
    assert Inventory.from_dict(json.loads(json.dumps(inventory.to_dict()))) == inventory


@given(inventories())
def test_lookups_agree_with_the_reading(inventory: Inventory) -> None:
    assert "" not in inventory.by_uuid
    assert list(inventory.by_uuid.values()) == [d for d in inventory.devices if d.uuid]
    slices = [s for d in inventory.devices for s in d.slices]
    assert list(inventory.slice_by_uuid.values()) == slices


@given(inventories())
def test_neighbours_share_silicon(inventory: Inventory) -> None:
    names = [*inventory.by_uuid, *inventory.slice_by_uuid]
    for a in names:
        near = inventory.neighbours(a)
        assert a not in near
        for b in near:
            assert a in inventory.neighbours(b)
        # Siblings, and cards among themselves, share nothing.
        assert not near & set(inventory.by_uuid if a in inventory.by_uuid else ())
        assert not near & set(inventory.slice_by_uuid if a in inventory.slice_by_uuid else ())
    for one in inventory.slice_by_uuid.values():
        assert inventory.neighbours(one.uuid) == {one.parent}
    assert inventory.neighbours("GPU-unknown") == frozenset()


@given(inventories())
def test_a_reading_can_be_hashed_and_kept(inventory: Inventory) -> None:
    again = Inventory.from_dict(inventory.to_dict())
    assert len({inventory, again}) == 1


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device("GPU-0", 0), ""),
        (Device("GPU-0", 0, recovery_action="none"), ""),
        (Device("GPU-0", 0, recovery_action="gpu-reset"), "'gpu-reset'"),
        (Device("", 0, error="GPU is lost"), "GPU is lost"),
        (Device("GPU-0", 0, error="GPU is lost", recovery_action="gpu-reset"), "GPU is lost"),
    ],
)
def test_ill(device: Device, why: str) -> None:
    assert bool(device.ill) == bool(why)
    assert why in device.ill


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"devices": None},
        {"devices": [{}]},
        {"devices": [{"uuid": "GPU-0", "index": 0, "colour": "red"}]},
        {"devices": [{"uuid": "GPU-0", "index": 0, "slices": [{"uuid": "MIG-0"}]}]},
        {"devices": [{"uuid": "GPU-0", "index": 0, "processes": [7]}]},
        {"devices": [], "links": [{"a": "GPU-0"}]},
        [],
    ],
)
def test_what_is_no_reading_is_refused(data: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Inventory.from_dict(data)  # type: ignore[arg-type]
