"""A stand-in NVIDIA driver: a small ``libnvidia-ml.so.1`` whose state tests can switch at any time.

The real nvidia-ml-py loads it, so the whole of the probe is exercised. How to use it::

    driver = FakeDriver(built_or_skip(tmp_path))     # four healthy cards
    source = NVMLSource(environment=driver.environment())
    # or start a hub with env=driver.environment(); it finds the cards. Then, while it runs:
    driver.cards[1].processes.append(FakeProcess(pid=4711, used_mib=900))
    driver.faults.append(Fault("nvmlInitWithFlags", action="hang"))
    driver.write()
    driver.lose(2)                                   # lost from the bus; written at once
    driver.heal()

``LD_LIBRARY_PATH`` must be set before the process that loads the library starts: the probe is
such a process, started anew for each reading, so a hub needs the variable in its own environment.
The library reads its state at every call from ``state.txt`` beside it; ``write`` replaces that
file at once, never half.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 3, 4, 15


def compiler() -> str | None:
    """Path of a C compiler, None if there is none."""
    return shutil.which("gcc") or shutil.which("cc")


def build(directory: Path, without: Iterable[str] = ()) -> Path:
    """Compile the library into ``directory``.

    Args:
        directory: made if missing.
        without: functions the library shall lack, as that of an older driver does.

    Returns:
        The directory, for ``LD_LIBRARY_PATH``.

    Raises:
        RuntimeError: no compiler; see :func:`compiler`.
        subprocess.CalledProcessError: the source does not compile.
    """
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: install gcc")
    directory.mkdir(parents=True, exist_ok=True)
    command = [cc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += [f"-D{name}=absent_{name}" for name in without]
    command += ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(directory / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    return directory


def built_or_skip(directory: Path, without: Iterable[str] = ()) -> Path:
    """:func:`build`; without a compiler the test is skipped, but fails where CI is set."""
    if compiler() is None:
        reason = "no C compiler for the stand-in driver: install gcc"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return build(directory, without)


@dataclass
class FakeProcess:
    """A process on a card or slice. ``kind``: ``c`` compute, ``m`` compute by MPS, ``g`` graphics.

    ``used_mib`` None is a driver that does not tell.
    """

    pid: int
    used_mib: int | None = 300
    kind: str = "c"


@dataclass
class FakeSlice:
    """A MIG slice. ``name`` as the driver writes it; memory in MiB; uuid ``-`` is not told."""

    uuid: str
    index: int = 0
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_mib: int = 4864
    gpu_slices: int = 1
    compute_slices: int = 1
    processes: list[FakeProcess] = field(default_factory=list)


@dataclass
class FakeCard:
    """A card. A None value is one the driver does not support."""

    uuid: str
    minor: int | None
    bus_id: str
    name: str = "NVIDIA A100-SXM4-40GB"
    memory_mib: int | None = 40960
    used_mib: int = 0
    reserved_mib: int = 600
    mig: bool | None = False
    recovery: int | None = 0
    display: bool | None = False
    processes: list[FakeProcess] = field(default_factory=list)
    slices: list[FakeSlice] = field(default_factory=list)
    #: Link number -> PCI bus id at its other end.
    nvlinks: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A function that fails.

    Attributes:
        function: such as ``nvmlDeviceGetUUID``; ``*`` is every one.
        device: index of the card it fails for (its slices answer on); None for all, and for calls
            without a card.
        action: an NVML error code, ``hang``, ``abort``, or ``print`` (noise on stdout).
    """

    function: str
    device: int | None = None
    action: int | str = GPU_IS_LOST


class FakeDriver:
    """The state of one built library. Change its attributes, then :meth:`write`.

    Args:
        directory: what :func:`build` returned.
        cards: how many healthy cards to begin with; their minors run backwards, since a minor
            is not an index.
    """

    def __init__(self, directory: Path, cards: int = 4) -> None:
        self.directory = directory
        self.driver_version = "550.54.15"
        self.cuda = 12040
        self.cards = [
            FakeCard(
                uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'stand-in-{index}')}",
                minor=cards - 1 - index,
                bus_id=f"00000000:{index + 1:02X}:00.0",
            )
            for index in range(cards)
        ]
        self.faults: list[Fault] = []
        #: (a, b) -> (P2P status, NVLink P2P status, common ancestor), as NVML numbers them.
        self.pairs: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.write()

    @property
    def uuids(self) -> list[str]:
        return [card.uuid for card in self.cards]

    def lose(self, index: int, function: str = "nvmlDeviceGetHandleByIndex_v2") -> None:
        """Let a card be lost from the bus, as seen by ``function`` first; written at once."""
        self.faults.append(Fault(function, index, GPU_IS_LOST))
        self.write()

    def heal(self) -> None:
        """Take every fault back; written at once."""
        self.faults.clear()
        self.write()

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """``base`` with the library first on ``LD_LIBRARY_PATH``."""
        paths = [str(self.directory), base.get("LD_LIBRARY_PATH", "")]
        return {**base, "LD_LIBRARY_PATH": ":".join(p for p in paths if p)}

    def write(self) -> None:
        """Make the state what the attributes say, for the next call into the library."""
        fresh = self.directory / "state.new"
        fresh.write_text("".join(f"{line}\n" for line in self._lines()))
        fresh.replace(self.directory / "state.txt")

    def _lines(self) -> list[str]:
        lines = [f"driver {self.driver_version}", f"cuda {self.cuda}"]
        for index, card in enumerate(self.cards):
            sizes = f"{_number(card.memory_mib)} {card.used_mib} {card.reserved_mib}"
            switches = f"{_number(card.mig)} {_number(card.recovery)} {_number(card.display)}"
            lines.append(
                f"device {index} {card.uuid} {_number(card.minor)} {card.bus_id} "
                f"{sizes} {switches} {card.name}"
            )
            lines += [_process(index, -1, process) for process in card.processes]
            for s in card.slices:
                counts = f"{s.gpu_slices} {s.compute_slices} {s.memory_mib}"
                lines.append(f"slice {index} {s.index} {s.uuid} {counts} {s.name}")
                lines += [_process(index, s.index, process) for process in s.processes]
            lines += [f"nvlink {index} {link} {to}" for link, to in card.nvlinks.items()]
        lines += [f"pair {a} {b} {p} {n} {c}" for (a, b), (p, n, c) in self.pairs.items()]
        for fault in self.faults:
            lines.append(f"fault {fault.function} {_number(fault.device)} {fault.action}")
        return lines


def _number(value: int | None) -> int:
    return -1 if value is None else int(value)


def _process(device: int, in_slice: int, process: FakeProcess) -> str:
    return f"process {device} {in_slice} {process.kind} {process.pid} {_number(process.used_mib)}"
