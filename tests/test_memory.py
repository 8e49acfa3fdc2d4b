"""The memory fraction and the variables derived from it."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner import memory
from gpuspawner.errors import ConfigError
from gpuspawner.memory import (
    CUPY_LIMIT,
    HOOK_PATH,
    JAX_FRACTION,
    JAX_FRACTION_NEW,
    TENSORFLOW_GROWTH,
    check_fraction,
    decimal_text,
    framework_env,
    hook_env,
    needs_hook,
)

FRACTIONS = st.fractions(min_value=Fraction(1, 10**9), max_value=1)
FRAMEWORK_NAMES = (JAX_FRACTION, JAX_FRACTION_NEW, CUPY_LIMIT, TENSORFLOW_GROWTH)


def env_for(
    fraction: Any,
    memory_mib: int | None = 1000,
    image: dict[str, str] | None = None,
    admin: dict[str, str] | None = None,
) -> dict[str, str | None]:
    return framework_env(
        fraction, memory_mib=memory_mib, image_env=image or {}, admin_env=admin or {}
    )


def final_env(
    image: dict[str, str], admin: dict[str, str], ours: dict[str, str | None]
) -> dict[str, str]:
    """What the process sees: the admin's over ours over the image's, None taken away."""
    merged: dict[str, str | None] = {**image, **ours, **admin}
    return {key: value for key, value in merged.items() if value is not None}


def test_half_a_card() -> None:
    assert env_for("1/2", 81559) == {
        "GPUSPAWNER_MEMORY_FRACTION": "0.5",
        "GPUSPAWNER_MEMORY_LIMIT_MIB": "40779",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
        "CUPY_GPU_MEMORY_LIMIT": "50%",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def test_a_whole_card_tells_frameworks_nothing() -> None:
    assert env_for(1, 81559) == {
        "GPUSPAWNER_MEMORY_FRACTION": "1",
        "GPUSPAWNER_MEMORY_LIMIT_MIB": "81559",
    }


def test_unknown_memory_gives_no_limit() -> None:
    assert "GPUSPAWNER_MEMORY_LIMIT_MIB" not in env_for(0.5, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (0.3, "0.3"),
        (1, "1"),
        (1.0, "1"),
        ("1/3", "0.333333"),
        ("2/3", "0.666666"),
        ("0.25", "0.25"),
        (Decimal("0.125"), "0.125"),
        (Fraction(1, 7), "0.142857"),
        (Fraction(1, 10**7), "0.0000001"),
        (Fraction(999_999_999, 10**9), "0.999999"),
    ],
)
def test_fraction_as_text(value: object, text: str) -> None:
    assert decimal_text(check_fraction(value)) == text


@given(FRACTIONS)
def test_text_is_plain_never_above_and_close(fraction: Fraction) -> None:
    text = decimal_text(fraction)
    assert set(text) <= set("0123456789.")
    assert fraction * Fraction(99_999, 100_000) < Fraction(text) <= fraction
    assert 0 < float(text) <= 1


@given(FRACTIONS, st.integers(1, 200_000))
def test_limits_never_exceed_the_share(fraction: Fraction, memory_mib: int) -> None:
    env = env_for(fraction, memory_mib)
    assert int(env["GPUSPAWNER_MEMORY_LIMIT_MIB"] or -1) <= fraction * memory_mib
    if fraction < 1:
        assert Fraction((env[CUPY_LIMIT] or "").removesuffix("%")) <= fraction * 100


@pytest.mark.parametrize(
    "value",
    [0, -0.5, 1.01, 2, True, None, "", "half", "1/0", [], float("nan"), float("inf"), b"0.5", 1j],
)
def test_bad_fractions_name_value_and_setting(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        check_fraction(value)
    assert "GPUSpawner.memory_fraction" in str(error.value)
    assert repr(value) in str(error.value)


@given(
    fraction=FRACTIONS,
    image=st.dictionaries(st.sampled_from(FRAMEWORK_NAMES), st.just("0.9")),
    admin=st.dictionaries(st.sampled_from(FRAMEWORK_NAMES), st.just("0.7")),
)
def test_one_jax_name_and_the_right_value(
    fraction: Fraction, image: dict[str, str], admin: dict[str, str]
) -> None:
    env = final_env(image, admin, env_for(fraction, image=image, admin=admin))
    jax = {name: env[name] for name in (JAX_FRACTION, JAX_FRACTION_NEW) if name in env}
    if fraction == 1:
        return  # nothing of ours; what image and admin say is theirs
    asked = [name for name in (JAX_FRACTION, JAX_FRACTION_NEW) if name in admin]
    if asked:
        assert jax == dict.fromkeys(asked, "0.7")
    else:
        assert jax == {JAX_FRACTION: decimal_text(fraction)}
    for name in (CUPY_LIMIT, TENSORFLOW_GROWTH):
        assert (env[name] == "0.7") == (name in admin)
        assert env[name] != "0.9"


@given(FRACTIONS)
def test_no_pytorch_key(fraction: Fraction) -> None:
    assert not [key for key in env_for(fraction) if "PYTORCH" in key]


def test_needs_hook() -> None:
    assert needs_hook("1/2", {})
    assert not needs_hook(1, {})


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_admins_own_fraction_for_pytorch_wins(name: str) -> None:
    assert not needs_hook("1/2", {name: "per_process_memory_fraction:0.3"})
    assert needs_hook("1/2", {name: "expandable_segments:True"})


@pytest.mark.parametrize(
    ("image", "admin", "expected"),
    [
        ({}, {}, HOOK_PATH),
        ({"PYTHONPATH": "/a:/b"}, {}, f"{HOOK_PATH}:/a:/b"),
        ({"PYTHONPATH": "/a"}, {"PYTHONPATH": "/c"}, f"{HOOK_PATH}:/c"),
        ({"PYTHONPATH": "/a"}, {"PYTHONPATH": ""}, HOOK_PATH),
        ({"PYTHONPATH": f"/a::{HOOK_PATH}:"}, {}, f"{HOOK_PATH}:/a"),
    ],
)
def test_pythonpath(image: dict[str, str], admin: dict[str, str], expected: str) -> None:
    assert hook_env(image, admin) == {"PYTHONPATH": expected}


def test_core_imports_no_shell() -> None:
    assert not {"docker", "traitlets", "jupyterhub", "asyncio"} & set(vars(memory))
