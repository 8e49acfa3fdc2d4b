"""The startup hook, in every Python found here, with a torch that records what it is asked."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

from gpuspawner.hook import hook_archive
from gpuspawner.memory import HOOK_PATH

HOOK = Path(__file__).parent.parent / "gpuspawner" / "hook" / "sitecustomize.py"


def pythons() -> list[str]:
    """This Python and the others of the machine, each really able to run."""
    found = {"this": sys.executable}
    for minor in range(6, 16):
        name = f"python3.{minor}"
        path = shutil.which(name)
        if path and minor != sys.version_info.minor:
            code = "import sys; print(sys.version_info[1])"
            result = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if result.stdout.strip() == str(minor):
                found[name] = path
    return list(found.values())


FAKE_TORCH = """
    events.append("imported")
    import torch.cuda
"""
FAKE_CUDA = """
    # Behaves as torch.cuda does: calls wait until CUDA is initialised, an error in one is fatal,
    # and setting a fraction selects its device.
    from torch import events
    _queue, _ready, _device = [], False, 0

    def _lazy_call(call, **kwargs):
        call() if _ready else _queue.append(call)

    def init():
        global _ready
        events.append("init")
        _ready = True
        for call in _queue:
            call()
        del _queue[:]

    def device_count():
        return 2

    def current_device():
        return _device

    def set_device(device):
        global _device
        _device = device

    def set_per_process_memory_fraction(fraction, device):
        global _device
        _device = device
        events.append((fraction, device))
"""


class Machine:
    """A folder of the hook, one of fake packages, and a Python to run with both."""

    def __init__(self, folder: Path, python: str) -> None:
        self.python = python
        self.hook = folder / "hook"
        self.packages = folder / "packages"
        self.hook.mkdir()
        self.packages.mkdir()
        shutil.copy(HOOK, self.hook / "sitecustomize.py")
        self.write("torch/__init__.py", "events = []\n" + textwrap.dedent(FAKE_TORCH))
        self.write("torch/cuda.py", FAKE_CUDA)
        self.write("torch/nn.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.packages / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run(
        self, code: str, fraction: str | None = "0.25", flags: tuple[str, ...] = ()
    ) -> tuple[str, str, int]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        env["PYTHONPATH"] = f"{self.hook}:{self.packages}"
        env.pop("GPUSPAWNER_MEMORY_FRACTION", None)
        if fraction is not None:
            env["GPUSPAWNER_MEMORY_FRACTION"] = fraction
        result = subprocess.run(
            [self.python, *flags, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        return result.stdout.strip(), result.stderr, result.returncode

    def prints(self, code: str, expected: str, fraction: str | None = "0.25") -> None:
        assert self.run(code, fraction) == (expected, "", 0)


@pytest.fixture(params=pythons(), ids=os.path.basename)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


@pytest.fixture
def this_machine(tmp_path: Path) -> Machine:
    """With this Python only, for what does not depend on the version."""
    return Machine(tmp_path, sys.executable)


LIMITED = "['imported', 'init', (0.25, 0), (0.25, 1)] 0"
SHOW = "torch.cuda.init(); print(torch.events, torch.cuda.current_device())"


def test_limits_every_device_at_first_use_not_at_import(machine: Machine) -> None:
    machine.prints("import torch; print(torch.events)", "['imported']")
    machine.prints(f"import torch; {SHOW}", LIMITED)


@pytest.mark.parametrize(
    "before",
    [
        "import torch.nn",
        "import importlib.util as u; u.find_spec('torch'); u.find_spec('torch')",
        "import torch.cuda as c, importlib; c.init(); importlib.import_module('torch.nn')",
        "import importlib; torch = importlib.import_module('torch')",
    ],
)
def test_every_way_of_importing(machine: Machine, before: str) -> None:
    code = f"""
        {before}
        import torch
        if "init" not in torch.events:
            torch.cuda.init()
        print(torch.events, torch.cuda.current_device())
    """
    machine.prints(code, LIMITED)


def test_looking_for_torch_does_not_import_it(machine: Machine) -> None:
    machine.prints(
        """
        import sys, importlib.util
        spec = importlib.util.find_spec("torch")
        print("torch" in sys.modules, type(spec.loader).__name__)
        """,
        "False SourceFileLoader",
    )


def test_reload_limits_no_second_time(this_machine: Machine) -> None:
    this_machine.prints(
        """
        import torch, importlib
        importlib.reload(torch)
        print(len(torch.cuda._queue))
        """,
        "1",
    )


def test_a_failed_import_may_be_tried_again(machine: Machine) -> None:
    machine.write(
        "torch/__init__.py",
        """
        import os
        events = []
        if os.environ.pop("BREAK", None):
            raise RuntimeError("broken")
        events.append("imported")
        import torch.cuda
        """,
    )
    machine.prints(
        f"""
        import os
        os.environ["BREAK"] = "1"
        try:
            import torch
        except RuntimeError:
            pass
        import torch
        {SHOW}
        """,
        LIMITED,
    )


def test_threads_that_import_at_once(machine: Machine) -> None:
    machine.prints(
        """
        import threading
        barrier = threading.Barrier(8)
        failed = []
        def work():
            barrier.wait()
            try:
                import torch, json, decimal, difflib
            except Exception as error:
                failed.append(error)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import torch
        torch.cuda.init()
        print(failed, torch.events, torch.cuda.current_device())
        """,
        f"[] {LIMITED}",
    )


def test_forked_workers_are_limited_when_they_use_cuda(this_machine: Machine) -> None:
    this_machine.prints(
        f"""
        import os, sys, torch
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            sys.exit()
        {SHOW}
        """,
        LIMITED,
    )


@pytest.mark.parametrize("fraction", [None, "", "1", "1.0", "0", "-1", "2", "nan", "half", "é"])
def test_without_a_usable_fraction_nothing_is_installed(
    this_machine: Machine, fraction: str | None
) -> None:
    this_machine.prints(
        """
        import sys, torch
        torch.cuda.init()
        print(torch.events, [f for f in sys.meta_path if type(f).__name__ == "_TorchFinder"])
        """,
        "['imported', 'init'] []",
        fraction,
    )


@pytest.mark.parametrize(
    "torch",
    [
        "",
        "cuda = None",
        "class cuda:\n    pass",
        "class cuda:\n    _lazy_call = staticmethod(lambda call: call())",
        "class cuda:\n    def _lazy_call(call): raise AssertionError('not compiled with CUDA')",
    ],
    ids=["empty", "none", "old", "no-cuda-device", "cpu-only"],
)
def test_a_torch_that_cannot_be_limited_still_works(this_machine: Machine, torch: str) -> None:
    (this_machine.packages / "torch" / "__init__.py").write_text(torch)
    this_machine.prints("import torch; print('fine')", "fine")


def test_an_error_while_limiting_does_not_break_cuda(this_machine: Machine) -> None:
    this_machine.prints(
        """
        import torch
        def fail(fraction, device): raise ValueError("no")
        torch.cuda.set_per_process_memory_fraction = fail
        torch.cuda.init()
        print(torch.events)
        """,
        "['imported', 'init']",
    )


def test_without_torch_nothing_changes(machine: Machine) -> None:
    shutil.rmtree(machine.packages / "torch")
    out, err, _ = machine.run("import torch")
    assert out == ""
    assert "No module named 'torch'" in err
    machine.prints("import importlib.util as u; print(u.find_spec('torch'))", "None")


def test_a_folder_named_torch_is_left_alone(machine: Machine) -> None:
    shutil.rmtree(machine.packages / "torch")
    (machine.packages / "torch").mkdir()
    machine.prints("import torch; print('fine')", "fine")


@pytest.mark.parametrize("flag", ["-S", "-I", "-E", "-s", "-O", "-B"])
def test_flags_of_python(machine: Machine, flag: str) -> None:
    assert machine.run("print('fine')", flags=(flag,)) == ("fine", "", 0)


def test_runs_with_warnings_as_errors(machine: Machine) -> None:
    assert machine.run(f"import torch; {SHOW}", flags=("-W", "error", "-bb")) == (LIMITED, "", 0)


def test_the_sitecustomize_behind_it_is_run(machine: Machine) -> None:
    machine.write("sitecustomize.py", "import sys; sys.theirs = __name__, __file__")
    machine.prints(
        f"import sys, sitecustomize, torch; print(sys.theirs, sitecustomize.__file__); {SHOW}",
        f"('sitecustomize', '{machine.packages}/sitecustomize.py') "
        f"{machine.packages}/sitecustomize.py\n{LIMITED}",
    )


def test_a_sitecustomize_package_is_run_too(this_machine: Machine) -> None:
    this_machine.write("sitecustomize/__init__.py", "import sys; sys.theirs = 'package'")
    this_machine.prints("import sys; print(sys.theirs)", "package", None)


def test_errors_of_theirs_are_reported_as_python_does(machine: Machine) -> None:
    machine.write("sitecustomize.py", "raise RuntimeError('theirs')")
    with_hook = machine.run(f"import torch; {SHOW}")
    (machine.hook / "sitecustomize.py").unlink()
    without_hook = machine.run("print('alone')")
    assert "theirs" in with_hook[1]
    assert with_hook == (LIMITED, without_hook[1], 0)


def test_another_import_hook_before_and_behind(this_machine: Machine) -> None:
    this_machine.write(
        "sitecustomize.py",
        """
        import sys
        class Finder:
            seen = []
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    self.seen.append(name)
        sys.meta_path.insert(0, Finder())
        sys.meta_path.append(Finder())
        """,
    )
    this_machine.prints(f"import torch; {SHOW}", LIMITED)


def test_archive_is_roots_and_read_only() -> None:
    with tarfile.open(fileobj=io.BytesIO(hook_archive())) as archive:
        members = archive.getmembers()
        content = archive.extractfile(members[-1])
        assert content is not None
        assert content.read() == HOOK.read_bytes()
    assert [(m.name, m.mode, m.isdir()) for m in members] == [
        (".gpuspawner", 0o755, True),
        (HOOK_PATH.lstrip("/"), 0o755, True),
        (f"{HOOK_PATH.lstrip('/')}/sitecustomize.py", 0o444, False),
    ]
    assert {(m.uid, m.gid) for m in members} == {(0, 0)}
    assert hook_archive() == hook_archive()
