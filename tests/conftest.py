"""Fixtures shared by all tests: real engines, images and hubs, made only where asked for.

A test that uses ``engine`` runs once per kind of engine. Where none can run (not root, no Docker)
such tests are skipped with the reason, except under CI, where that is a failure.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest

from ground import image
from ground.binaries import machine_binaries
from ground.engine import Engine
from ground.hub import Hub
from ground.machine import GroundError
from ground.registry import clear_dead_engines

# On a busy machine neither the time of an example nor that of making one says anything.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

ENGINE_FIXTURES = {"engine", "can_run_engines", "tiny_image", "tiny_image_all", "notebook_image"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for an engine, so that ``-m 'not engine'`` leaves them out."""
    for item in items:
        if ENGINE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("engine")


def no_engine(error: GroundError) -> NoReturn:
    """Skip, or fail where the engine is expected to be there."""
    if os.environ.get("CI"):
        pytest.fail(f"no engine, but CI is set: {error}", pytrace=False)
    pytest.skip(f"no engine: {error}")


@pytest.fixture(scope="session")
def can_run_engines() -> None:
    """For a test that starts engines without the ``engine`` fixture."""
    try:
        if os.geteuid() != 0:
            raise GroundError("a private engine needs root")
        clear_dead_engines()
        machine_binaries()
    except GroundError as error:
        no_engine(error)


@pytest.fixture(scope="session", params=["hook", "cdi"])
def engine(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    can_run_engines: None,
) -> Iterator[Engine]:
    """A private engine with four simulated cards, of each kind in turn."""
    try:
        started = Engine(tmp_path_factory.mktemp(f"engine-{request.param}"), request.param).start()
    except GroundError as error:
        no_engine(error)
    yield started
    started.stop()


@pytest.fixture
def engine_kind(engine: Engine) -> str:
    """``hook`` or ``cdi``."""
    return engine.kind


@pytest.fixture
def clean_engine(engine: Engine) -> Iterator[Engine]:
    """The engine, without containers before and after the test."""
    engine.remove_containers()
    yield engine
    engine.remove_containers()


@pytest.fixture(scope="session")
def tiny_image(engine: Engine) -> str:
    """Name of the tiny server's image, loaded into the engine."""
    return image.load_tiny(engine.client)


@pytest.fixture(scope="session")
def tiny_image_all(tiny_image: str) -> str:
    """The same with ``NVIDIA_VISIBLE_DEVICES=all`` baked in."""
    return image.TINY_ALL


@pytest.fixture(scope="session")
def notebook_image(engine: Engine) -> str:
    """Name of the real notebook image, loaded into the engine."""
    return image.load_notebook(engine.client)


@pytest.fixture
def make_hub(tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    """Start hubs, with :class:`ground.hub.Hub`'s arguments but the folder; all end with the test.

    ``start=False`` returns it unstarted. Give ``engine=`` and ``image=`` for a stock DockerSpawner
    on that engine, which ``config`` may then turn into ours.
    """
    hubs: list[Hub] = []

    def make(config: str = "", *, start: bool = True, **kwargs: Any) -> Hub:
        hub = Hub(tmp_path / f"hub{len(hubs)}", config, **kwargs)
        hubs.append(hub)
        return hub.start() if start else hub

    yield make
    for hub in hubs:
        hub.stop()


@pytest.fixture(scope="session")
def python5() -> str:
    """An interpreter with JupyterHub 5: of ``GPUSPAWNER_HUB5_PYTHON``, else script/bootstrap's."""
    made = Path(__file__).parents[1] / ".venv-hub5" / "bin" / "python"
    python = os.environ.get("GPUSPAWNER_HUB5_PYTHON", str(made))
    if not Path(python).exists():
        reason = f"no JupyterHub 5 at {python}: run script/bootstrap --tests"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    command = [python, "-m", "jupyterhub", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("5."), told.stdout
    return python
