"""The system's Chromium, headless: for the tests of the fleet page and its pictures."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "chromium", "fonts-liberation")


def chromium() -> str:
    """The path of an installed Chromium. Installs Debian's where that is allowed; else says how."""
    if found := _installed():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (("apt-get", "update"), _INSTALL):
            subprocess.run(words, check=True, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
        if found := _installed():
            return found
    raise RuntimeError(f"Chromium is not installed. Run: sudo {' '.join(_INSTALL)}")


def _installed() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A running browser, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container there is no sandbox to be had, and only our own page is opened.
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()
