"""Simulated cards: their ids, and what makes an engine hand them out.

On the hook path a stand-in ``nvidia-container-runtime-hook`` records what the engine gave it. On
the CDI path a specification maps each ``/dev/nvidiaN`` to the host's ``/dev/null``, so that a
container really has that node and only that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuspawner.devices import Inventory
from gpuspawner.simulated_inventory import simulated_inventory

_HOOK = """#!/bin/sh
# Stands in for NVIDIA's hook: records its arguments and stdin in a folder of its own per call.
set -e
call=$(mktemp -d {records}/call.XXXXXXXX)
printf '%s\\n' "$@" > "$call/args"
cat > "$call/stdin"
if [ -s {folder}/fail ]; then
    cat {folder}/fail >&2
    exit 1
fi
"""

_RUNTIME = """#!/bin/sh
# Stands in for NVIDIA's runtime: records the container's configuration at create, then is runc.
bundle=
create=
previous=
for word in "$@"; do
    [ "$previous" = --bundle ] && bundle=$word
    [ "$word" = create ] && create=yes
    previous=$word
done
if [ -n "$create" ] && [ -f "$bundle/config.json" ]; then
    cp "$bundle/config.json" "$(mktemp {records}/runtime.XXXXXXXX)"
fi
exec {runc} "$@"
"""


def simulated_uuids(count: int = 4) -> tuple[str, ...]:
    """Ids of the product's own simulated cards, the same in every run."""
    return tuple(device.uuid for device in simulated_inventory(count).devices)


def cdi_spec(uuids: Sequence[str]) -> dict[str, Any]:
    """A CDI specification with one device per id, each a node that is really ``/dev/null``."""
    return _spec({uuid: number for number, uuid in enumerate(uuids)})


def _spec(numbers: Mapping[str, int]) -> dict[str, Any]:
    """The same, by the number of each one's node."""
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": uuid,
                "containerEdits": {
                    "deviceNodes": [{"path": f"/dev/nvidia{number}", "hostPath": "/dev/null"}]
                },
            }
            for uuid, number in numbers.items()
        ],
    }


def write_cdi(folder: Path, uuids: Sequence[str]) -> Path:
    """Write the specification into ``folder``; returns the file."""
    return _write(folder / "simulated.json", cdi_spec(uuids))


def write_slices(folder: Path, inventory: Inventory) -> Path:
    """Write a specification of all slices, each the node of its card; returns the file."""
    devices = {d.uuid: d.minor or 0 for d in inventory.devices}
    slices = {uuid: devices[s.parent] for uuid, s in inventory.slice_by_uuid.items()}
    return _write(folder / "slices.json", _spec(slices))


def _write(path: Path, spec: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(spec, indent=1))
    # The engine watches the folder: it must never read half a file.
    new.replace(path)
    return path


def write_hook(folder: Path) -> Path:
    """Write the stand-in hook into ``folder/bin``; returns that PATH entry."""
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    return _executable(
        folder / "bin" / "nvidia-container-runtime-hook",
        _HOOK.format(folder=folder, records=records),
    ).parent


def write_runtime(folder: Path, runc: str) -> Path:
    """Write the stand-in ``nvidia`` runtime into ``folder``; returns its path."""
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    return _executable(
        folder / "nvidia-container-runtime", _RUNTIME.format(records=records, runc=runc)
    )


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
