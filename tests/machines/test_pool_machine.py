"""The pool keeps the laws in whatever order the engine's effects come."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .pool_machine import PoolMachine

SHORT = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_in_any_order_the_laws_hold() -> None:
    run_state_machine_as_test(PoolMachine, settings=SHORT)
