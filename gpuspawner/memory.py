"""The memory budget of a server: one fraction, and every variable that is derived from it.

A framework's fraction is advisory: it is honoured by the framework, per process, of the device's
total memory. PyTorch is handled by the startup hook (:mod:`gpuspawner.hook`) and not by
``PYTORCH_ALLOC_CONF``, since versions before 2.10 fail on a key they don't know.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Final

from .errors import ConfigError
from .names import ENV_MEMORY_FRACTION, ENV_MEMORY_LIMIT_MIB

#: Folder of the startup hook in the container. Directly under the root, because ``/opt`` and
#: ``/usr`` are mounted from elsewhere, often read-only, on some machines.
HOOK_PATH: Final = "/.gpuspawner/python"

#: JAX reads either name and fails if both are set. Every version reads the older one.
JAX_FRACTION: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
JAX_FRACTION_NEW: Final = "XLA_CLIENT_MEM_FRACTION"
CUPY_LIMIT: Final = "CUPY_GPU_MEMORY_LIMIT"
TENSORFLOW_GROWTH: Final = "TF_FORCE_GPU_ALLOW_GROWTH"
#: Where an admin may have told PyTorch from 2.10 on a fraction, by either name.
PYTORCH_OPTIONS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_PYTORCH_FRACTION = "per_process_memory_fraction"

_SIX_DIGITS_DOWN = Context(prec=6, rounding=ROUND_FLOOR)


def check_fraction(value: object, name: str = "GPUSpawner.memory_fraction") -> Fraction:
    """Read a fraction of a device's memory.

    Args:
        value: an int, float, Fraction or Decimal, or a text such as ``"1/3"`` or ``"0.25"``. A
            float means the decimal number it prints as, so 0.1 is exactly one tenth.
        name: the setting, for the message.

    Returns:
        The exact fraction, above 0 and at most 1.

    Raises:
        ConfigError: it is no number, or outside that range.
    """
    fraction = None
    if isinstance(value, (int, float, str, Fraction, Decimal)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError, ZeroDivisionError):
            fraction = Fraction(repr(value) if isinstance(value, float) else value)
    if fraction is None or not 0 < fraction <= 1:
        raise ConfigError(
            f"{name} is {value!r}; use a number above 0 and at most 1, such as 0.5 or '1/3' "
            "(1 sets no limit)"
        )
    return fraction


def decimal_text(fraction: Fraction) -> str:
    """The fraction in decimal, without an exponent, never above it: six digits that count.

    ``1/3`` gives ``0.333333``, ``1`` gives ``1``.
    """
    number = _SIX_DIGITS_DOWN.divide(Decimal(fraction.numerator), Decimal(fraction.denominator))
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def framework_env(
    fraction: Fraction | float | str,
    *,
    memory_mib: int | None,
    image_env: Mapping[str, str],
    admin_env: Mapping[str, object],
) -> dict[str, str | None]:
    """The environment of a server that has a card.

    Args:
        fraction: part of each visible device, above 0 and at most 1.
        memory_mib: total memory of the smallest visible device in MiB; None if not known.
        image_env: what the image sets.
        admin_env: what the configuration sets. Its framework variables win over ours, ours over
            the image's, since a larger value in an image would take a neighbour's memory.

    Returns:
        Variables to set. None takes a variable of the image away (Docker's API does that for a
        name without a value). At 1 no framework is told anything.

    Raises:
        ConfigError: the fraction is out of range.
    """
    part = check_fraction(fraction)
    text = decimal_text(part)
    env: dict[str, str | None] = {ENV_MEMORY_FRACTION: text}
    if memory_mib is not None:
        env[ENV_MEMORY_LIMIT_MIB] = str(int(memory_mib * part))
    if part == 1:
        return env
    frameworks: dict[str, str | None] = {
        CUPY_LIMIT: f"{decimal_text(part * 100)}%",
        TENSORFLOW_GROWTH: "true",
    }
    env.update((key, value) for key, value in frameworks.items() if key not in admin_env)
    env.update(_jax_env(text, image_env, admin_env))
    return env


def _jax_env(
    text: str, image_env: Mapping[str, str], admin_env: Mapping[str, object]
) -> dict[str, str | None]:
    """One JAX name, whatever image and admin say between them."""
    env: dict[str, str | None] = {}
    if JAX_FRACTION not in admin_env:
        if JAX_FRACTION_NEW not in admin_env:
            env[JAX_FRACTION] = text
        elif JAX_FRACTION in image_env:
            env[JAX_FRACTION] = None
    if JAX_FRACTION_NEW in image_env and JAX_FRACTION_NEW not in admin_env:
        env[JAX_FRACTION_NEW] = None
    return env


def needs_hook(fraction: Fraction | float | str, admin_env: Mapping[str, object]) -> bool:
    """True if the startup hook has something to do, so is worth copying into the container.

    Args:
        fraction: part of each visible device, above 0 and at most 1.
        admin_env: what the configuration sets. A fraction for PyTorch there wins.

    Raises:
        ConfigError: the fraction is out of range.
    """
    told = any(_PYTORCH_FRACTION in str(admin_env.get(name, "")) for name in PYTORCH_OPTIONS)
    return check_fraction(fraction) < 1 and not told


def hook_env(image_env: Mapping[str, str], admin_env: Mapping[str, object]) -> dict[str, str]:
    """``PYTHONPATH`` with the startup hook first and what was there kept behind it."""
    existing = admin_env.get("PYTHONPATH")
    if existing is None:
        existing = image_env.get("PYTHONPATH", "")
    # An empty entry would mean the working directory, so none is added.
    others = [part for part in str(existing).split(":") if part and part != HOOK_PATH]
    return {"PYTHONPATH": ":".join([HOOK_PATH, *others])}
