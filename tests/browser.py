"""A student's real browser: which one, how it starts, and the pages' usual steps by keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from ground.hub import PASSWORD, Hub
from ground.machine import GroundError

#: A Chromium to use instead of any that is found.
VARIABLE = "GPUSPAWNER_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: No sandbox, since tests run as root; and nothing that talks to the world.
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Until a page's next step shows, on a busy machine. Milliseconds.
PATIENCE_MS = 120_000


def chromium_path(own: str) -> str:
    """The browser to start: the variable's, else Playwright's own, else the machine's.

    Raises:
        GroundError: there is none.
    """
    found = os.environ.get(VARIABLE) or (own if Path(own).exists() else None)
    found = found or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise GroundError(
            f"no Chromium: run 'playwright install chromium' or 'apt-get install chromium', or "
            f"name one in {VARIABLE}"
        )
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser.

    Raises:
        GroundError: there is none.
    """
    with sync_playwright() as playwright:
        path = chromium_path(playwright.chromium.executable_path)
        started = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        try:
            yield started
        finally:
            started.close()


def new_context(browser: Browser, **kwargs: Any) -> BrowserContext:
    """Cookies and settings of one person."""
    context = browser.new_context(**kwargs)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)  # else five seconds
    return context


def log_in(page: Page, hub: Hub, user: str) -> None:
    """Log in on the hub's page by keyboard alone; ends on the spawn form."""
    page.goto(f"{hub.url}/hub/login?next=%2Fhub%2Fspawn")
    page.get_by_label("Username:").focus()
    page.keyboard.type(user)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    form(page).wait_for()


def form(page: Page) -> Locator:
    """Our part of the spawn page."""
    return page.locator(".gpuspawner")


def radio(page: Page, name: str) -> Locator:
    """A profile's button, by the name that people read."""
    return form(page).get_by_role("radio", name=name, exact=True)


def choose(page: Page, name: str) -> None:
    """Choose a profile by keyboard: to the group, then along it."""
    tab_to(page, form(page).locator("input[type=radio]:checked"))
    wanted = radio(page, name)
    for _ in range(form(page).get_by_role("radio").count()):
        if wanted.is_checked():
            return
        page.keyboard.press("ArrowDown")
    raise AssertionError(f"the arrow keys never reach {name!r}")


def tab_to(page: Page, wanted: Locator, most: int = 40) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(most):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never reaches {wanted}")


def run_in_notebook(page: Page, code: str) -> str:
    """Open a notebook from JupyterLab's launcher, run one cell, return what it printed."""
    page.locator('.jp-LauncherCard[data-category="Notebook"]').first.click()
    # Before the kernel is there, JupyterLab runs nothing and says nothing.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")
    return page.locator(".jp-OutputArea-output").first.inner_text().strip()
