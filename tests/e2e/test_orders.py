"""Orders through the whole system while workers are killed: the paper broker's own book is the judge."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from local.driver import EngineProcess, until
from local.paper.audit import overlaps

USERS = [f"trader-{number:02}" for number in range(20)]
ORDERS = 1000
#: What the book calls them, and what our record must say.
WORDS = {"filled": "filled", "canceled": "cancelled", "rejected": "rejected", "expired": "expired"}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(tmp_path / "engine", "--pool", "4", "--speed", "10", "--session", "broker")
    try:
        yield engine.start()
    finally:
        engine.end()


def start(up: EngineProcess, *users: str) -> None:
    for user in users:
        up.command(user, "start")
    for user in users:
        up.ready(user)


def place(up: EngineProcess, user: str, **order: Any) -> str:
    body = {"symbol": "MSFT", "side": "buy", "qty": "1"} | order
    answer = up.api.post(f"/v1/users/{user}/orders", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["order_id"])


def order(up: EngineProcess, user: str, order_id: str) -> dict[str, Any]:
    answer = up.api.get(f"/v1/users/{user}/orders/{order_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def all_orders(up: EngineProcess, user: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = up.api.get(f"/v1/users/{user}/orders", params={"cursor": cursor, "limit": 200}).json()
        rows += page["orders"]
        if page["next_cursor"] is None:
            return rows
        cursor = page["next_cursor"]


def log_of(up: EngineProcess, user: str) -> str:
    return "\n".join(up.get(f"/v1/workers/{user}/logs")["lines"])


def turn(up: EngineProcess, **knobs: Any) -> None:
    httpx.patch(f"{up.endpoints['paper']}/admin/faults", json=knobs).raise_for_status()


def book(up: EngineProcess) -> dict[str, dict[str, Any]]:
    rows = httpx.get(f"{up.endpoints['paper']}/audit/orders", timeout=30).json()
    assert len({row["client_order_id"] for row in rows}) == len(rows), "one id, two orders"
    return {row["client_order_id"]: row for row in rows}


@pytest.mark.timeout(180)
def test_orders_of_many_users_while_workers_are_killed_end_in_the_brokers_truth(up: EngineProcess) -> None:
    start(up, *USERS)
    turn(up, partial=0.2, rejected=0.05, late=0.1, late_by_s=1.0, duplicate=0.2, out_of_order=0.2,
         lost_answer=0.05, server_error=0.03, lost_stream=0.02, one_stream=False)  # fmt: skip
    seed = random.Random(8)
    # Each worker once: a second death within a minute is answered with a pause of 20 s, and this is not about
    # that.
    victims = seed.sample(USERS, 16)
    jobs = [(seed.choice(USERS), str(seed.randint(1, 9))) for _ in range(ORDERS)]
    kill_before = dict(zip(seed.sample(range(ORDERS), len(victims)), victims, strict=True))
    killed: dict[str, int] = {}

    def one(number: int) -> tuple[str, str]:
        if victim := kill_before.get(number):
            seen = up.worker(victim)
            os.kill(seen["pid"], signal.SIGKILL)
            killed[victim] = seen["epoch"]
        user, qty = jobs[number]
        return place(up, user, qty=qty), user

    with ThreadPoolExecutor(4) as together:
        accepted = dict(together.map(one, range(ORDERS)))
    assert (len(accepted), len(killed)) == (ORDERS, len(victims))

    def waiting(*, verified: bool) -> list[dict[str, Any]]:
        rows = {row["order_id"]: row for user in USERS for row in all_orders(up, user)}
        return [
            rows[name]
            for name in accepted
            if not rows[name]["final"] or (verified and rows[name]["verified"] != "verified")
        ]

    _none_left(lambda: waiting(verified=False), "every order is final")
    turn(up, lost_answer=0.0, server_error=0.0)
    _none_left(lambda: waiting(verified=True), "every order is verified")
    judged = book(up)
    for user in USERS:
        for row in all_orders(up, user):
            held = judged.pop(row["order_id"], None)
            assert held is not None, f"the broker has nothing of {row}"
            seen = (row["status"], Decimal(row["filled_qty"]))
            assert seen == (WORDS[held["status"]], Decimal(held["filled_qty"])), (row, held)
            assert (held["key_id"], held["attempts"]) == (f"paper-{user}", 1)
            assert row["differs"] is None
            assert accepted.pop(row["order_id"]) == user
    assert (judged, accepted) == ({}, {})
    sessions = httpx.get(f"{up.endpoints['paper']}/audit/sessions").json()
    assert overlaps(sessions, time.time()) == {}
    assert all(up.worker(victim)["epoch"] > epoch for victim, epoch in killed.items())


def test_an_order_is_refused_repeated_cancelled_and_shown(up: EngineProcess) -> None:
    body = {"symbol": "AAPL", "side": "buy", "qty": "1"}
    early = up.api.post("/v1/users/solo/orders", json=body)
    assert (early.status_code, "/v1/workers/solo/start" in early.json()["detail"]) == (409, True)
    start(up, "solo")
    headers = {"Idempotency-Key": "once"}
    twice = [up.api.post("/v1/users/solo/orders", json=body, headers=headers).json() for _ in range(2)]
    assert [answer["repeated"] for answer in twice] == [False, True]
    assert twice[0]["order_id"] == twice[1]["order_id"]
    resting = place(up, "solo", type="limit", limit_price="0.01", time_in_force="gtc")
    until(lambda: order(up, "solo", resting)["status"] == "accepted", "it rests at the broker")
    assert up.api.delete(f"/v1/users/solo/orders/{resting}").json()["result"] == "asked"
    until(lambda: order(up, "solo", resting)["status"] == "cancelled", "it is cancelled")
    until(lambda: order(up, "solo", resting)["verified"] == "verified", "the broker was asked")
    refused = place(up, "solo", qty="900000000")
    until(lambda: order(up, "solo", refused)["final"], "it is refused")
    assert "buying power" in order(up, "solo", refused)["reason"]
    assert [row["order_id"] for row in all_orders(up, "solo")] == [refused, resting, twice[0]["order_id"]]
    assert Counter(row["attempts"] for row in book(up).values()) == {1: 2}


def test_the_paper_broker_outlives_a_killed_engine_and_comes_back_when_it_ends(
    up: EngineProcess,
) -> None:
    start(up, "holder")
    paper = _paper_process(up)
    up.kill()
    up.start()
    assert _paper_process(up).pid == paper.pid
    first = place(up, "holder")
    until(lambda: order(up, "holder", first)["final"], "the order is filled")
    paper.kill()
    until(lambda: "stream away" in log_of(up, "holder"), "the worker says that its broker is away")
    second = place(up, "holder")
    until(lambda: up.worker("holder")["phase"] == "ready", "the broker is back")
    until(lambda: order(up, "holder", second)["final"], "the second order is filled")
    assert {row["attempts"] for row in book(up).values()} == {1}
    assert up.stop() == 0
    until(lambda: not up.processes(), "nothing is left running", 10)


def test_a_user_with_a_bad_key_fails_with_the_reason_and_does_not_crash_loop(up: EngineProcess) -> None:
    answer = up.api.post("/v1/workers/stranger/start", json={"credentials_ref": "muster/broker/nobody"})
    assert answer.status_code == 202
    up.phase("stranger", "failed")
    failed = up.worker("stranger")
    assert "there is no secret 'muster/broker/nobody'" in failed["reason"]
    assert failed["failures"] == 0
    refused = up.api.post("/v1/users/stranger/orders", json={"symbol": "AAPL", "side": "buy", "qty": "1"})
    assert refused.status_code == 409
    assert "failed" in refused.json()["detail"]


def _none_left(waiting: Callable[[], list[dict[str, Any]]], what: str) -> None:
    try:
        until(lambda: not waiting(), what, 80)
    except TimeoutError as late:
        raise AssertionError(f"{late}; left: {waiting()[:3]}") from late


def _paper_process(up: EngineProcess) -> psutil.Process:
    (found,) = (p for p in up.processes() if "local.paper" in " ".join(p.cmdline()))
    return found
