"""Where Chromium is missing: installed where that is allowed, else the exact command is said."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from local import browser


def test_without_root_the_command_to_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match="sudo apt-get install -y --no-install-recommends chromium"):
        browser.chromium()


def test_root_installs_debians_package_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"apt-get": "/usr/bin/apt-get"}
    ran: list[tuple[str, ...]] = []

    def run(words: tuple[str, ...], **_: object) -> None:
        ran.append(words)
        if words[1] == "install":
            there["chromium"] = "/usr/bin/chromium"

    monkeypatch.setattr(shutil, "which", there.get)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert browser.chromium() == "/usr/bin/chromium"
    assert [words[1] for words in ran] == ["update", "install"]
