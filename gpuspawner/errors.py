"""Errors of the core. They import nothing of ours, so that every layer may raise them.

::

    GPUSpawnerError
    ├── ConfigError          the admin's configuration is wrong: stops the hub at start
    ├── OptionsError         what a user sent is wrong (reason ``invalid-options``)
    │   └── ForbiddenProfile the profile exists, this user may not have it (``profile-forbidden``)
    ├── NotAsPromised        a container would have other GPUs than its lease says
    ├── EngineUnknown        the container engine could not be asked: unknown is busy
    └── ProbeError           the driver could not be asked: unknown is busy

An error carries two texts. ``str(error)`` is for the admin: it names the value, what is allowed and
the fix. ``error.user_message`` is for the person at the form: short, kind, without system words.
"""

from __future__ import annotations


class GPUSpawnerError(Exception):
    """Base of every error raised by the core.

    Args:
        message: for the admin and the log.
        user_message: for the person at the form; empty where no user ever sees it.
    """

    def __init__(self, message: str, *, user_message: str = "") -> None:
        super().__init__(message)
        self.user_message = user_message


class ConfigError(GPUSpawnerError):
    """The configuration can't be used; the text names the entry, the field and what is allowed."""


class OptionsError(GPUSpawnerError):
    """What the user sent is not a valid choice."""


class ForbiddenProfile(OptionsError):
    """The profile exists, but not for this user."""


class NotAsPromised(GPUSpawnerError):
    """A container has, or would have, other GPUs than it was promised: it must not run."""


class EngineUnknown(GPUSpawnerError):
    """The engine gave no usable answer. Never means that a device is free."""


class NoAddress(GPUSpawnerError):
    """A container has no address: it has ended, or is just being started again."""


class ProbeError(GPUSpawnerError):
    """The driver gave no usable answer.

    Args:
        kind: one of ``no-library``, ``no-driver``, ``version-mismatch``, ``driver-too-old``,
            ``no-permission``, ``timeout``, ``crashed``, ``bad-output``, ``driver-error``.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
