"""The documentation tells what is so: settings, names, lines of the log, links and examples."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from traitlets.config import Config

from gpuspawner import cli, configure, names

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
MODULES = sorted(
    p for p in (ROOT / "gpuspawner").rglob("*.py") if p.name not in ("__init__.py", "cli.py")
)


def load(path: Path) -> ModuleType:
    """A Python file outside any package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


generate = load(DOCS / "generate.py")
SETTINGS = [
    (section, name, trait)
    for section in generate.SECTIONS
    for name, trait in generate.traits_of(section).items()
]


def page(path: str) -> str:
    return (DOCS / path).read_text()


def run_as_config(text: str) -> Config:
    """Execute lines as a ``jupyterhub_config.py`` and check what they set."""
    c = Config()
    exec(text, {"c": c, "get_config": lambda: c})
    configure(c)
    return c


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", generate.PAGES)
def test_a_page_made_from_the_code_is_the_one_the_code_makes(path: str) -> None:
    assert page(path) == generate.PAGES[path](), "run: python docs/generate.py"


@pytest.mark.parametrize(
    ("section", "name", "trait"), SETTINGS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_setting_has_words_and_an_example_that_works(
    section: str, name: str, trait: object
) -> None:
    words = generate.words_of(trait)
    assert words.endswith(".")
    assert "Default:" in words
    if name.endswith(("_seconds", "_timeout")):
        assert "econds" in words
    c = run_as_config(generate.example_of(trait))
    assert name in c[section]


# -- examples -------------------------------------------------------------------------------------


def examples() -> list[tuple[str, str]]:
    """Every block of Python in the documentation, with its place."""
    return [
        (f"{path.relative_to(ROOT)}-{number}", block)
        for path in PAGES
        for number, block in enumerate(
            re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
        )
    ]


@pytest.mark.parametrize("block", [b for _, b in examples()], ids=[p for p, _ in examples()])
def test_an_example_is_a_configuration_that_works(block: str) -> None:
    run_as_config(block)


def test_commands_are_documented_and_only_those() -> None:
    text = page("reference/commands.md")
    assert set(re.findall(r"^## `gpuspawner (\w+)`", text, re.MULTILINE)) == set(cli.COMMANDS)


# -- names ----------------------------------------------------------------------------------------


def constants(prefix: str) -> dict[str, str]:
    return {key: value for key, value in vars(names).items() if key.startswith(prefix)}


def test_every_label_and_variable_is_documented() -> None:
    text = page("reference/labels.md")
    for value in [*constants("LABEL_").values(), *constants("ENV_").values()]:
        assert f"`{value}`" in text


def test_every_reason_that_is_given_is_documented_and_no_other() -> None:
    code = "".join(path.read_text() for path in MODULES if path.stem != "names")
    given = {value for key, value in constants("REASON_").items() if re.search(rf"\b{key}\b", code)}
    given |= set(re.findall(r'reason="([a-z-]+)"', code))
    documented = re.findall(r"^\| `([a-z-]+)` \|", page("reference/refusals.md"), re.MULTILINE)
    assert set(documented) == given


def test_every_module_has_its_place_in_the_drawing() -> None:
    drawing = re.findall(r"```\n(.*?)```", page("explanation/architecture.md"), re.DOTALL)[0]
    drawn = set(re.findall(r"\w+", drawing))
    files = {p.stem for p in (ROOT / "gpuspawner").glob("*.py")} - {"__init__"}
    assert files - drawn == set()


# -- log ------------------------------------------------------------------------------------------


def logged() -> set[str]:
    """Every text that the code gives to a logger."""
    found = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name in ("log", "_log") and node.args and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return found


def as_pattern(line: str, gap: str) -> re.Pattern[str]:
    """What has these words, with anything in the gaps."""
    return re.compile(".*".join(map(re.escape, re.split(gap, line))), re.DOTALL)


def test_every_line_of_the_log_is_documented() -> None:
    cells = re.findall(r"^\| (.*?) \|", page("reference/log.md"), re.MULTILINE)
    lines = [line for cell in cells for line in re.findall(r"`(.*?)`", cell)]
    assert len(logged()) > 10
    for text in logged():
        if not re.search(r"[a-z]{3}", re.sub(r"%\w", "", text)):
            continue  # put together elsewhere
        # The page may leave out an end, or tell one line in several forms.
        told = as_pattern(text, r"%\w")
        assert any(as_pattern(e, "…").match(text) or told.fullmatch(e) for e in lines), text


# -- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not target.startswith(("http://", "https://", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


def test_every_page_is_reached_from_the_index() -> None:
    index = DOCS / "README.md"
    linked = {
        (index.parent / target).resolve()
        for target in re.findall(r"\]\(([^)\s#]+)\)", index.read_text())
    }
    assert {p for p in DOCS.rglob("*.md") if p != index} <= linked


def test_settings_named_in_the_documentation_exist() -> None:
    known = {name for section in generate.SECTIONS for name in generate.traits_of(section)}
    for path in PAGES:
        for section, name in re.findall(r"\b(GPUSpawner|GPUPool)\.(\w+)", path.read_text()):
            assert name in known or name in ("start_timeout", "http_timeout", "remove"), (
                f"{path}: {section}.{name}"
            )
