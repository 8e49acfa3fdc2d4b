"""The driver probe: ``python -m gpuspawner.probe`` prints one JSON object and ends.

The hub runs it as a process of its own (:class:`gpuspawner.inventory.NVMLSource`), so that a hang
or a crash in the driver's library can't hurt the hub, and a new process sees an upgraded driver.

Output, on stdout: ``{"ok": true, "inventory": {...}}`` or
``{"ok": false, "kind": "no-driver", "message": "..."}``, with the kinds of
:class:`gpuspawner.errors.ProbeError`. Exit status 0 or 1. Whatever the library prints goes to
stderr.

An optional argument is a number of seconds after which the probe, if it still runs, writes to
stderr where it hangs.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from gpuspawner.errors import ProbeError

_CONTAINER_ID = re.compile(r"(?<![0-9a-f])(?P<id>[0-9a-f]{64})(?![0-9a-f])")


def container_ids(cgroup: str) -> tuple[str, ...]:
    """Ids of the containers a process is in, outermost first, each once.

    Args:
        cgroup: text of ``/proc/<pid>/cgroup``, of cgroup v1 (``5:devices:/docker/<id>``) or v2
            (``0::/system.slice/docker-<id>.scope``), also nested, also Podman's ``libpod-<id>``.
    """
    found: dict[str, None] = {}
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        # libpod-conmon-<id> is Podman's watcher, outside the container of that id.
        found.update(dict.fromkeys(_CONTAINER_ID.findall(path.replace("libpod-conmon-", "f"))))
    return tuple(found)


class Attributor:
    """Which container a PID is in, as ``/proc`` says now.

    Containers the probe itself is in are left out: inside one, ``/proc`` either names it for
    every process, or shows another process under the host's PID; neither tells whose work it is.

    Args:
        proc: where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._own = set(container_ids(self._read("self")))

    def __call__(self, pid: int) -> str | None:
        """Id of the outermost container of the process that the probe is not in.

        None: in no container, or that can't be read.

        Raises:
            ProcessLookupError: there is no such process.
        """
        found = container_ids(self._read(str(pid)))
        return next((i for i in found if i not in self._own), None)

    def _read(self, pid: str) -> str:
        try:
            return (self._proc / pid / "cgroup").read_text(errors="replace")
        except FileNotFoundError:
            raise ProcessLookupError(f"no process {pid} in {self._proc}") from None
        except ProcessLookupError:
            raise
        except OSError:
            return ""


def probe() -> dict[str, Any]:
    """One reading as the JSON-ready answer described at the top of this module."""
    try:
        from gpuspawner.nvml import read_inventory
    except ModuleNotFoundError as missing:
        if missing.name != "pynvml":
            raise
        message = (
            "the Python package nvidia-ml-py is not installed in the hub's environment: run "
            f"'{sys.executable} -m pip install nvidia-ml-py'"
        )
        return {"ok": False, "kind": "no-library", "message": message}
    try:
        return {"ok": True, "inventory": read_inventory(Attributor()).to_dict()}
    except ProbeError as error:
        return {"ok": False, "kind": error.kind, "message": str(error)}


def main(argv: list[str] | None = None) -> int:
    """Print one reading; see the module's text."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments:
        faulthandler.dump_traceback_later(float(arguments[0]))
    # A library that prints must not spoil the one JSON object.
    answer_to = os.dup(1)
    os.dup2(2, 1)
    answer = probe()
    with os.fdopen(answer_to, "w") as out:
        json.dump(answer, out)
        out.write("\n")
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
