"""The short form of the storm: half a minute of it, with every check at the end."""

from __future__ import annotations

from pathlib import Path

from chaos.__main__ import report
from chaos.storm import Plan, storm

PLAN = Plan(
    seed=3,
    seconds=20,
    users=20,
    think_seconds=6,
    gap_seconds=3,
    created_grace_seconds=15,
    orphan_grace_seconds=5,
    clean_interval_seconds=1,
    http_timeout_seconds=20,
)


def test_a_short_storm_breaks_no_law(can_run_engines: None, tmp_path: Path) -> None:
    oracle = storm(PLAN, tmp_path)
    print(report(oracle))
    assert oracle.violations == [], report(oracle)
    assert oracle.granted
