"""A real browser: the machine's own chromium, driven over its protocol. Tests that want it skip where there is none."""

import os
import shutil
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """A headless chromium (playwright's `Browser`)."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no chromium on this machine")
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # chromium's sandbox refuses to run as root
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"] if root else [])
        yield started
        started.close()
