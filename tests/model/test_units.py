"""Each rule that no search can express has a test that fails without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.mutants import MUTANTS
from model.units import RESULTS, UNITS, Unit, rounds

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """The tests that failed, by round."""
    found = []
    for number, units in enumerate(rounds()):
        results = tmp_path_factory.mktemp("units") / "failed"
        subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-p",
                    "model.units",
                    "-p",
                    "no:cacheprovider",
                ),
                *(f"tests/{unit.test}" for unit in units),
            ],
            cwd=TESTS.parent,
            env={
                **os.environ,
                RESULTS: f"{results}:{number}",
                "PYTHONPATH": os.pathsep.join(str(p) for p in (TESTS.parent, TESTS)),
            },
            capture_output=True,
            check=False,
        )
        found.append(set(json.loads(results.read_text())))
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: f"{u.rule}: {u.without}")
def test_a_rule_left_out_fails_its_test(unit: Unit, failed: list[set[str]]) -> None:
    number = next(n for n, units in enumerate(rounds()) if unit in units)
    assert any(name.endswith(unit.test) for name in failed[number])


def test_every_rule_is_left_out_somewhere() -> None:
    rules = {m.rule[0] for m in MUTANTS} | {u.rule[0] for u in UNITS}
    assert rules >= set("123456")  # the seventh is in test_fitness.py
    assert {m.rule for m in MUTANTS} | {u.rule for u in UNITS} >= {"6a", "6b", "6c"}
