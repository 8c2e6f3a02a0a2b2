"""A rehearsal really opens a session, and leaves nothing behind."""

from __future__ import annotations

import os
import threading

import pytest

from muster import scrub
from muster.brokers.alpaca import AlpacaBroker
from muster.brokers.port import Opened, Order
from worker.rehearsal import rehearse


def test_a_rehearsal_opens_the_stream_and_lists_the_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Opened | list[Order] | object] = []
    updates, open_orders = AlpacaBroker.updates, AlpacaBroker.open_orders
    monkeypatch.setattr(AlpacaBroker, "updates", lambda *a: said.append(updates(*a)))
    monkeypatch.setattr(AlpacaBroker, "open_orders", lambda *a: said.append(open_orders(*a)))
    rehearse()
    assert said[0] == Opened()
    assert isinstance(said[1], list)
    assert len(said[1]) == 1


def test_a_rehearsal_leaves_no_thread_no_file_and_no_secret() -> None:
    rehearse()  # what libraries open once and keep
    threads, files = threading.active_count(), os.listdir("/proc/self/fd")
    rehearse()
    assert threading.active_count() == threads
    assert os.listdir("/proc/self/fd") == files
    assert scrub.hide("paper - key") == "paper - key"


def test_a_rehearsal_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr("worker.rehearsal._play", away)
    monkeypatch.setattr("worker.rehearsal._PATIENCE_S", 0.05)
    rehearse()
    assert not [thread for thread in threading.enumerate() if thread.name == "rehearsal"]
