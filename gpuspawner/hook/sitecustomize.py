"""Keep PyTorch within this server's part of the GPU memory.

Python runs this at startup because its folder is on PYTHONPATH. It waits for torch to be imported
and then asks it to apply GPUSPAWNER_MEMORY_FRACTION when CUDA is first used, not before. Without
torch or fraction it does nothing. It never prints and never fails.

Runs on Python 3.6 and newer, in the user's process: standard library only, and of that only what
is loaded already, since every start of Python pays for it.
"""

# mypy: ignore-errors
# ruff: noqa: BLE001, PTH120, S110, SIM105, SLF001
import os
import sys


def _fraction():
    try:
        value = float(os.environ.get("GPUSPAWNER_MEMORY_FRACTION", "1"))
    except ValueError:
        return None
    return value if 0 < value < 1 else None


class _TorchFinder:
    """Finds torch as the other finders do, and has its loader call back once it was loaded.

    It stays on sys.meta_path: to take it off while another thread imports would make that
    thread skip a finder.
    """

    def __init__(self, fraction):
        self.fraction = fraction
        self.done = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.done:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                self.watch(spec.loader)
                return spec
        return None

    def watch(self, loader):
        # The loader keeps its type, which tools look at; only its method is covered.
        original = getattr(loader, "exec_module", None)
        if original is None or getattr(original, "gpuspawner", False):
            return

        def exec_module(module):
            original(module)
            if module.__name__ == "torch":
                self.done = True
                _limit(module, self.fraction)

        exec_module.gpuspawner = True
        try:
            loader.exec_module = exec_module
        except Exception:  # a loader without attributes of its own: torch is left as it is
            pass


def _limit(torch, fraction):
    def set_fraction():
        # An error here would make CUDA unusable, and the limit is advisory.
        try:
            cuda = torch.cuda
            current = cuda.current_device()
            try:
                for device in range(cuda.device_count()):
                    cuda.set_per_process_memory_fraction(fraction, device)
            finally:
                cuda.set_device(current)  # setting a fraction selects its device
        except Exception:
            pass

    try:
        torch.cuda._lazy_call(set_fraction)
    except Exception:  # a torch without it: too old, or not PyTorch at all
        pass


def _run_next():
    """Run the sitecustomize that this one hides: the system's, conda's or the user's own."""
    here = os.path.dirname(__file__)
    if here not in sys.path:
        return
    try:
        # Loaded already, unlike importlib.util, which would slow every start of Python.
        from _frozen_importlib import module_from_spec
        from _frozen_importlib_external import PathFinder
    except ImportError:
        return
    rest = sys.path[sys.path.index(here) + 1 :]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    # What it raises is for Python's site module to report, as if this one were not here.
    spec.loader.exec_module(module)


if _fraction() is not None:
    sys.meta_path.insert(0, _TorchFinder(_fraction()))
_run_next()
