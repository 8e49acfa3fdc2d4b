"""Where the hub learns which cards there are: ``GPUPool.inventory``.

Three sources: the local driver, a fixed list in the configuration, and simulated cards. Each is a
:class:`Source`; :func:`source_from_config` makes one of the configured value.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from gpuspawner.devices import Inventory
from gpuspawner.errors import ConfigError, ProbeError
from gpuspawner.fixed_inventory import devices_from_config
from gpuspawner.simulated_inventory import simulated_from_config, simulated_inventory

#: Seconds a probe may take before it is killed (another process's teardown can hold NVML for 2).
DEFAULT_DEADLINE_SECONDS = 10.0
#: Seconds a killed probe is given to be gone. One stuck in the driver can't be killed at all.
_REAP_SECONDS = 1.0


class Source(Protocol):
    """Something that tells which cards there are.

    Attributes:
        description: for the admin's log, such as ``the local NVIDIA driver``.
    """

    @property
    def description(self) -> str: ...

    def read(self) -> Coroutine[Any, Any, Inventory]:
        """A reading that began after this call did.

        Raises:
            ProbeError: no usable answer. Never means that there are no cards, or free ones.
        """
        ...


class FixedSource:
    """Cards listed in the configuration. Their health and processes are not known.

    Args:
        entries: see :func:`gpuspawner.fixed_inventory.devices_from_config`.

    Raises:
        ConfigError: naming the entry, the field and what is allowed.
    """

    def __init__(self, entries: Sequence[Any]) -> None:
        self._inventory = Inventory(devices=devices_from_config(entries), source="fixed")

    @property
    def description(self) -> str:
        return f"a fixed list of {len(self._inventory.devices)} in the configuration"

    async def read(self) -> Inventory:
        return self._inventory


class SimulatedSource:
    """Cards that do not exist, for a look at the product without a GPU."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    @property
    def description(self) -> str:
        return f"{len(self._inventory.devices)} simulated cards"

    async def read(self) -> Inventory:
        return self._inventory


class NVMLSource:
    """The local driver, asked by ``python -m gpuspawner.probe`` in a process of its own.

    One probe runs at a time; further calls wait their turn. Cancelling a ``read`` leaves its probe
    to end by itself, at the deadline at the latest.

    Args:
        deadline_seconds: after this the probe's process group is killed.
        environment: variables for the probe, in place of this process's own.
    """

    description = "the local NVIDIA driver"

    def __init__(
        self,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._environment = environment
        self._stuck: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpuspawner-probe")

    async def read(self) -> Inventory:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._probe)

    def _probe(self) -> Inventory:
        if self._stuck is not None and self._stuck.poll() is None:
            raise ProbeError(
                f"an earlier driver probe (process {self._stuck.pid}) hangs in the NVIDIA driver "
                "and can't be killed. Look at 'dmesg | grep -i nvrm'; the machine may need a "
                "reboot",
                kind="timeout",
            )
        self._stuck = None
        process = self._start()
        try:
            out, err = process.communicate(timeout=self._deadline_seconds)
        except subprocess.TimeoutExpired:
            err = self._kill(process)
            raise ProbeError(
                f"the NVIDIA driver gave no answer within {self._deadline_seconds:g} s"
                f"{_where(err)}. Look at 'nvidia-smi' and 'dmesg | grep -i nvrm'; if the first "
                "answer after a boot is slow, switch on persistence mode (nvidia-persistenced)",
                kind="timeout",
            ) from None
        return _parse(process.returncode, out, err)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ if self._environment is None else self._environment
        try:
            return subprocess.Popen(
                _command(self._deadline_seconds),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=_child_environment(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise ProbeError(
                f"the driver probe can't be started: {error}. The hub's machine may be out of "
                "memory or processes",
                kind="crashed",
            ) from error

    def _kill(self, process: subprocess.Popen[bytes]) -> bytes:
        """Kill the probe and whatever it started; what it had written to stderr."""
        # Not reaped yet (we are its only waiter), so its id can't have become another's.
        os.killpg(process.pid, signal.SIGKILL)
        try:
            return process.communicate(timeout=_REAP_SECONDS)[1]
        except subprocess.TimeoutExpired as unkillable:
            self._stuck = process
            return unkillable.stderr or b""


def _command(deadline_seconds: float) -> list[str]:
    # Shortly before the deadline the probe writes where it hangs: the message can say so.
    look_seconds = 0.9 * deadline_seconds
    return [sys.executable, "-X", "faulthandler", "-m", "gpuspawner.probe", f"{look_seconds:g}"]


def _child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The probe's variables: it must find this package, and nothing in the hub's own folder."""
    child = dict(environment)
    # The child starts in /, where relative entries would mean something else.
    paths = [str(Path(p).absolute()) for p in child.get("PYTHONPATH", "").split(os.pathsep) if p]
    home = Path(__file__).resolve().parents[1]
    # PYTHONPATH comes before the standard library: an installed package is found without it.
    if home.name not in ("site-packages", "dist-packages"):
        paths.append(str(home))
    child["PYTHONPATH"] = os.pathsep.join(paths)
    return child


def _where(err: bytes) -> str:
    """`` (in nvmlInitWithFlags)``, from the innermost line of a dumped traceback."""
    found = re.search(rb" in (nvml\w+)", err)
    return f" (in {found[1].decode()})" if found else ""


def _parse(status: int, out: bytes, err: bytes) -> Inventory:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        raise ProbeError(
            f"the driver probe crashed with {name}{_where(err)}; its fault is the NVIDIA driver's "
            "library, unless the machine is out of memory. Look at 'dmesg'",
            kind="crashed",
        )
    try:
        answer = json.loads(out)
        if answer["ok"]:
            return Inventory.from_dict(answer["inventory"])
        fault = ProbeError(answer["message"], kind=answer["kind"])
    except (KeyError, TypeError, ValueError) as error:
        tail = err.decode(errors="replace").strip()[-300:]
        raise ProbeError(
            f"the driver probe ended with status {status} and no usable answer ({error!r}). "
            f"It wrote to stderr: {tail!r}. Try '{sys.executable} -m gpuspawner.probe'",
            kind="bad-output",
        ) from error
    raise fault


_ALLOWED = """use one of
  c.GPUPool.inventory = "nvml"        # ask the local NVIDIA driver
  c.GPUPool.inventory = "simulated"   # four cards that do not exist
  c.GPUPool.inventory = {"simulated": 8, "model": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960,
                         "mig": ["3g.20gb", "2g.10gb"], "nvlink_groups": [4, 4]}
  c.GPUPool.inventory = [{"uuid": "GPU-...", "model": "...", "memory_gib": 40}, ...]"""


def source_from_config(value: Any, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Source:
    """The source that ``GPUPool.inventory`` asks for.

    Args:
        value: ``"nvml"``, ``"simulated"``, ``{"simulated": N, ...}`` or a list of cards; see
            :mod:`gpuspawner.simulated_inventory` and :mod:`gpuspawner.fixed_inventory`.
        deadline_seconds: for the driver only.

    Raises:
        ConfigError: naming the entry, the field, what is allowed and an example.
    """
    if value == "nvml":
        return NVMLSource(deadline_seconds)
    if value == "simulated":
        return SimulatedSource(simulated_inventory())
    if isinstance(value, Mapping):
        return SimulatedSource(simulated_from_config(value, _ALLOWED))
    if isinstance(value, (list, tuple)):
        return FixedSource(value)
    raise ConfigError(f"GPUPool.inventory is {value!r}; {_ALLOWED}")
