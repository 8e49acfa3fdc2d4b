"""Calls into NVML, with its many errors sorted into three: not told, this card's, the driver's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuspawner.errors import ProbeError

# NVML's numbers, so that an older nvidia-ml-py without one of the names still works.
_INVALID_ARGUMENT, _NOT_SUPPORTED, NO_PERMISSION, _NOT_FOUND = 2, 3, 4, 6
INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 7, 13
_UNINITIALIZED, _NO_DRIVER, _NO_LIBRARY, _VERSION_MISMATCH = 1, 9, 12, 18
_NO_DATA, _ARGUMENT_VERSION, _DEPRECATED = 21, 25, 26

#: "This card or driver does not tell": a value, not a fault.
NOT_TOLD = {
    _INVALID_ARGUMENT,
    _NOT_SUPPORTED,
    NO_PERMISSION,
    _NOT_FOUND,
    FUNCTION_NOT_FOUND,
    _NO_DATA,
    _ARGUMENT_VERSION,
    _DEPRECATED,
}

#: Failures of the whole driver: NVML's number -> our kind and what to do about it.
_DRIVER_FAULTS = {
    _NO_LIBRARY: (
        "no-library",
        (
            "NVML's library libnvidia-ml.so.1 was not found. Install the NVIDIA driver; if the hub "
            "runs in a container, start that container with the driver's utility capability. On a "
            "machine without NVIDIA cards set c.GPUPool.inventory = 'simulated'"
        ),
    ),
    _NO_DRIVER: (
        "no-driver",
        (
            "the NVIDIA kernel driver is not loaded. Run 'modprobe nvidia' and look for the cause "
            "in 'dmesg | grep -i nvrm'. On a machine without NVIDIA cards set "
            "c.GPUPool.inventory = 'simulated'"
        ),
    ),
    _VERSION_MISMATCH: (
        "version-mismatch",
        (
            "the driver's library and its loaded kernel module are of different versions, as after "
            "a driver upgrade. Stop what uses the cards and reload the nvidia kernel modules, or "
            "reboot the machine"
        ),
    ),
    FUNCTION_NOT_FOUND: (
        "driver-too-old",
        (
            "the installed NVIDIA driver is too old: its library lacks a function that is needed. "
            "Update the driver to 470 or newer"
        ),
    ),
    NO_PERMISSION: (
        "no-permission",
        (
            "the hub's user may not open the NVIDIA devices. Give it read and write access to "
            "/dev/nvidiactl and /dev/nvidia0, /dev/nvidia1, ..."
        ),
    ),
}


class UnreadableError(Exception):
    """One card can't be read; the text becomes its ``error``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def driver_fault(error: Any) -> ProbeError:
    """An ``NVMLError`` of the whole driver, with its kind and what to do about it."""
    kind, fix = _DRIVER_FAULTS.get(
        error.value,
        ("driver-error", "Look at 'nvidia-smi' and 'dmesg | grep -i nvrm' on this machine"),
    )
    return ProbeError(f"NVML error {error.value} ({error}): {fix}.", kind=kind)


def must(call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` answers.

    Raises:
        ProbeError: the whole driver is at fault.
        UnreadableError: it failed for this card, or this card does not tell.
    """
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        if error.value in (_UNINITIALIZED, _NO_DRIVER, _NO_LIBRARY, _VERSION_MISMATCH):
            raise driver_fault(error) from error
        raise UnreadableError(f"{error} ({call.__name__})", error.value) from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"unreadable text ({call.__name__})", 0) from error


def ask(call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` answers, None where the card or driver does not tell.

    Raises:
        ProbeError: the whole driver is at fault.
        UnreadableError: it failed for this card.
    """
    try:
        return must(call, *args)
    except UnreadableError as fault:
        if fault.code in NOT_TOLD:
            return None
        raise
