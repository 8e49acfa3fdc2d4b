"""One user, one card: GPUs for JupyterHub's users, in containers.

Importing the package is cheap and touches no container engine and no driver; its names are loaded
when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import configure
    from .pool import GPUPool
    from .spawner import GPUSpawner

__version__ = "0.1.0"
__all__ = ["GPUPool", "GPUSpawner", "__version__", "configure"]

_HOME = {"GPUPool": ".pool", "GPUSpawner": ".spawner", "configure": ".config"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
