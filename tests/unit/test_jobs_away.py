"""A job worker whose backend is away: it asks now and then, and leaves when that lasts."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from muster.errors import TryLater
from worker import jobs
from worker.jobs import JobWorker, parse


class Time:
    """Stands in for the module `time`, and for the news that wake and end the heartbeat."""

    def __init__(self, until: float) -> None:
        self.now, self.until = 0.0, until
        self.told: list[Any] = []

    def monotonic(self) -> float:
        return self.now

    def put(self, news: Any) -> None:
        self.told.append(news)

    def get(self, timeout: float) -> Any:
        if self.told:
            return self.told.pop(0)
        self.now += max(timeout, 0.001)  # nothing takes no time at all
        if self.now < self.until:
            raise queue.Empty
        return jobs._News.ENDED


class Away:
    """A pool behind a server that is gone."""

    asked = 0

    def extend(self, *_: Any) -> Any:
        self.asked += 1
        raise TryLater("the server is gone")


@pytest.fixture
def worker() -> JobWorker:
    made = JobWorker(parse(["--pool", "p", "--url", "memory://", "--heartbeat", "30"]), None)
    made._pool = Away()  # type: ignore[assignment]
    return made


def live(worker: JobWorker, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(seconds)
    monkeypatch.setattr(jobs, "time", time)
    worker._news = time  # type: ignore[assignment]
    worker._beat_until_ended()


def test_it_asks_no_more_often_than_it_would_look(worker: JobWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    live(worker, 60.0, monkeypatch)
    assert 25 <= worker._pool.asked <= 32  # type: ignore[attr-defined]
    assert worker._stop_by is None


def test_it_leaves_when_the_backend_stays_away(worker: JobWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    live(worker, jobs._AWAY_S + 10, monkeypatch)
    assert worker._stop_by is not None
