"""MIG slices on real engines: given out one by one, each to one server, never their card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_hub import gpu_hub, inside
from gpuspawner.simulated_inventory import simulated_inventory
from ground.cards import write_slices
from ground.engine import Engine
from ground.hub import Hub

MIG = ["3g.20gb", "1g.5gb"]
CONFIG = f"""
c.GPUPool.inventory = {{"simulated": 2, "mig": {MIG!r}}}
c.GPUSpawner.profile_list = [
    {{"display_name": "A slice", "slug": "slice", "gpu": {{"mig_profile": "1g.5gb"}}}},
    {{"display_name": "A whole GPU", "slug": "one-gpu", "gpu": {{"count": 1}}}},
]
"""
SLICE = {"profile": "slice"}


@pytest.fixture
def hub(engine: Engine, tiny_image: str, tmp_path: Path) -> Iterator[Hub]:
    engine.remove_containers()
    spec = write_slices(engine.cdi_folder, simulated_inventory(2, mig=MIG))
    try:
        with gpu_hub(tmp_path, engine, tiny_image, CONFIG) as hub:
            if engine.kind == "cdi":
                hub.wait(lambda: "MIG-" in str(engine.client.info()), "the engine knows the slices")
            yield hub
    finally:
        spec.unlink()
        engine.remove_containers()


def test_each_server_has_a_slice_of_its_own_and_nobody_the_card(hub: Hub, engine: Engine) -> None:
    slices = simulated_inventory(2, mig=MIG).slice_by_uuid
    small = {uuid for uuid, one in slices.items() if one.profile == "1g.5gb"}
    given = set()
    hub.add_users("ada", "ben", "cleo")
    for user in ("ada", "ben"):
        hub.start_server(user, SLICE)
        hub.wait_ready(user)
        seen = inside(hub, user)
        told = seen["env"]["GPUSPAWNER_DEVICES"]
        given.add(told)
        if engine.kind == "cdi":
            minor = simulated_inventory(2).by_uuid[slices[told].parent].minor
            assert [n for n in seen["dev"] if n.startswith("nvidia")] == [f"nvidia{minor}"]
        [row] = engine.client.containers(filters={"label": f"gpuspawner.user={user}"})
        assert row["Labels"]["gpuspawner.devices"] == told
        [request] = engine.client.inspect_container(row["Id"])["HostConfig"]["DeviceRequests"]
        name = f"nvidia.com/gpu={told}" if engine.kind == "cdi" else told
        assert request["DeviceIDs"] == [name]
    assert given == small

    refused = hub.start_server("cleo", SLICE, check=False)
    assert refused.status_code == 503
    assert "2 GPU slices are free, none of them of the kind you asked for." in refused.text
    refused = hub.start_server("cleo", {"profile": "one-gpu"}, check=False)
    assert refused.status_code == 503
    assert "no GPU that can be used" in refused.text

    hub.stop_server("ada")
    hub.wait_stopped("ada")
    hub.start_server("cleo", SLICE)
    hub.wait_ready("cleo")
    assert {inside(hub, user)["env"]["GPUSPAWNER_DEVICES"] for user in ("ben", "cleo")} == small
