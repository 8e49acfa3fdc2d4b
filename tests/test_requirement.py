"""``NVIDIA_REQUIRE_CUDA``: which images a driver is too old for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.requirement import unmet

#: As in NVIDIA's own images.
CUDA_12_4 = (
    "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536 "
    "brand=tesla,driver>=535,driver<536"
)


@pytest.mark.parametrize(
    ("require", "cuda", "driver", "needs"),
    [
        ("", "12.4", "550.54.15", None),
        (CUDA_12_4, "12.4", "550.54.15", None),
        (CUDA_12_4, "13.0", "580.1", None),
        (CUDA_12_4, "12.2", "535.104.5", None),  # this driver is named beside
        (CUDA_12_4, "12.3", "545.23", "12.4"),
        (CUDA_12_4, "9.2", "396.44", "12.4"),
        ("cuda>=13.0", "12.8", None, "13.0"),
        ("cuda>12", "12.8", None, "12"),
        ("cuda>=13.0", None, None, None),
        ("driver>=600", "12.8", "580.1", ""),
        ("arch>=7.0", "12.8", "580.1", None),
    ],
)
def test_what_is_needed(require: str, cuda: str | None, driver: str | None, needs: str) -> None:
    assert unmet({"NVIDIA_REQUIRE_CUDA": require}, cuda, driver) == needs


def test_it_can_be_taken_back() -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=99"}
    assert unmet(env, "12.8", "580.1") == "99"
    assert unmet({**env, "NVIDIA_DISABLE_REQUIRE": "true"}, "12.8", "580.1") is None


@given(st.text() | st.text(alphabet="cudarive><=!,. 0129"), st.text(max_size=8))
def test_any_text_has_an_answer(require: str, version: str) -> None:
    needs = unmet({"NVIDIA_REQUIRE_CUDA": require}, version, version)
    assert needs is None or needs in require
