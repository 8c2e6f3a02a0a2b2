"""The real worker process with a broker session; the paper broker's own book is the judge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from local.driver import until
from local.endpoint import LocalAws
from local.paper.process import PaperBroker, paper_broker
from local.valkey import EmbeddedValkey
from muster import steps
from muster.blueprint import ORDER_TASKS
from muster.brokers.port import Credentials, Opened
from muster.model import Assignment, Cause, Phase, Want
from muster.order_steps import OrderRecord, cancel_order, read_inbox
from muster.orders import parse_check
from muster.store import Step, Store
from tests.order_stand import accept, record, wanted
from worker.broker import BrokerSession, Parts, _from_environment
from worker.exits import Exit
from worker.inbox import LOOK

ROOT = Path(__file__).parents[2]
ME = "tests.integration.test_broker_worker"
CANARY = "canary-0f6c1e7d9b"
REF = "muster/broker/u1"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(BrokerSession):
    """A broker session whose process is killed at one exact point, named by MUSTER_SESSION_DIES."""

    def __init__(self) -> None:
        super().__init__(_parts_that_die)


def _parts_that_die() -> Parts:
    point, parts = os.environ["MUSTER_SESSION_DIES"], _from_environment()

    def connect(credentials: Credentials) -> Any:
        broker = parts.connect(credentials)
        place, updates = broker.place, broker.updates

        def dying_place(order: Any) -> Any:
            if point == "begun":
                _die()
            placed = place(order)
            if point == "sent":
                _die()
            return placed

        def deaf(timeout: timedelta) -> Any:
            """Nothing is recorded by way of the stream either."""
            said = updates(timeout)
            return said if isinstance(said, Opened) else None

        broker.place = dying_place  # type: ignore[method-assign]
        broker.updates = deaf  # type: ignore[method-assign]
        return broker

    def send_checks(checks: Any) -> None:
        if point == "recorded":
            _die()
        parts.send_checks(checks)
        if point == "checked":
            _die()

    return replace(parts, connect=connect, send_checks=send_checks)


class Stage:
    """One user, worker processes for it, and the broker's book."""

    def __init__(self, store: Store, valkey_url: str, aws: LocalAws, paper: PaperBroker, logs: Path) -> None:
        self.store, self.aws, self.paper = store, aws, paper
        self.log = logs / "worker.log"
        self.queue = aws.ensure_queues()[ORDER_TASKS.name]
        aws.client("sqs").purge_queue(QueueUrl=self.queue)
        self._valkey_url = valkey_url
        self._processes: list[subprocess.Popen[bytes]] = []
        self.put_secret(CANARY)

    def put_secret(self, secret: str) -> None:
        said = json.dumps({"broker": "paper", "key_id": "k1", "secret": secret, "url": self.paper.url})
        vault = self.aws.client("secretsmanager")
        try:
            vault.create_secret(Name=REF, SecretString=said)
        except vault.exceptions.ResourceExistsException:
            vault.put_secret_value(SecretId=REF, SecretString=said)

    def worker(
        self, given: Assignment, dies: str = "", words: tuple[str, ...] = ("-m", "worker")
    ) -> subprocess.Popen[bytes]:
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "MUSTER_VALKEY_URL": self._valkey_url,
            "MUSTER_AWS_ENDPOINT": self.aws.url,
            "MUSTER_QUEUE_ORDER_TASKS": self.queue,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "MUSTER_USER": given.user,
            "MUSTER_EPOCH": str(given.epoch),
            "MUSTER_CREDENTIALS_REF": given.credentials_ref,
            "MUSTER_TASK_ID": f"task-{given.epoch}",
            "MUSTER_SESSION": f"{ME}:Dying" if dies else "worker.broker:BrokerSession",
            "MUSTER_SESSION_DIES": dies,
        }
        with self.log.open("ab") as out:
            process = subprocess.Popen([sys.executable, *words], env=env, stdout=out, stderr=out)
        self._processes.append(process)
        return process

    def succeed(self, given: Assignment) -> Assignment:
        """What maintenance does after a task's end: clear its mark, begin a repair."""
        self.store.one(steps.task_stopped(given.user, f"task-{given.epoch}", "killed"))
        begun = self.store.one(
            steps.begin_start(given.user, Cause.REPAIR, 0, "repair", seen_epoch=given.epoch)
        )
        assert isinstance(begun, steps.Begin), begun
        assert begun.credentials_ref == REF
        return replace(given, epoch=begun.epoch)

    def phase(self, phase: Phase) -> None:
        until(lambda: self.store.one(steps.read_user("u1")).phase is phase, f"u1 is {phase.value}")

    def order(self, order_id: str, done: Callable[[OrderRecord], bool]) -> OrderRecord:
        until(lambda: done(record(self.store, order_id)), f"{order_id} is there")
        return record(self.store, order_id)

    def checks(self) -> list[str]:
        """The orders whose checks are on the queue."""
        received = self.aws.client("sqs").receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10)
        return [parse_check(message["Body"]).order_id for message in received.get("Messages", ())]

    def inbox_is_empty(self) -> bool:
        return self.store.one(read_inbox("u1", "0-0", LOOK / 1000)) == []

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    endpoint = LocalAws(tmp_path_factory.mktemp("aws")).start()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def stage(valkey: Any, valkey_server: EmbeddedValkey, aws: LocalAws, tmp_path: Path) -> Iterator[Stage]:
    with paper_broker(tmp_path / "paper", accounts={"k1": CANARY}) as paper:
        made = Stage(Store(valkey), valkey_server.url, aws, paper, tmp_path)
        yield made
        made.end()


@pytest.mark.parametrize("point", ["begun", "sent", "recorded", "checked"])
def test_wherever_a_worker_is_killed_its_successor_ends_the_order_once(stage: Stage, point: str) -> None:
    given = wanted(stage.store)
    accept(stage.store, "o1")
    assert stage.worker(given, dies=point).wait(60) == -signal.SIGKILL
    before = record(stage.store, "o1")
    held = stage.paper.orders()
    assert len(held) == (0 if point == "begun" else 1)
    assert (before.status == "sending") == (point in ("begun", "sent"))
    assert not stage.inbox_is_empty()

    stage.worker(stage.succeed(given))
    found = stage.order("o1", lambda order: order.final)
    (judged,) = stage.paper.orders()
    assert (judged["client_order_id"], judged["status"], judged["attempts"]) == ("o1", "filled", 1)
    assert (found.status, Decimal(found.filled_qty)) == ("filled", Decimal(judged["filled_qty"]))
    assert found.broker_order_id == judged["id"]
    until(stage.inbox_is_empty, "the inbox is empty")
    assert stage.checks() == ["o1"], "one check, however often it was sent"


def test_a_worker_connects_resumes_and_hears_of_fills_that_come_late(stage: Stage) -> None:
    stage.paper.faults(late=1.0, late_by_s=0.5, partial=1.0, duplicate=0.5, out_of_order=0.5)
    given = wanted(stage.store)
    accept(stage.store, "o1")
    worker = stage.worker(given)
    stage.phase(Phase.READY)
    found = stage.order("o1", lambda order: order.final)
    assert (found.status, found.reported) == ("filled", "filled")
    worker.terminate()
    assert worker.wait(30) == Exit.DONE
    assert [session["goodbye"] for session in stage.paper.sessions()] == [1], "the slot was given back"


def test_what_happened_while_no_worker_lived_is_known_when_the_next_is_ready(stage: Stage) -> None:
    stage.paper.faults(late=1.0, late_by_s=1.0)
    given = wanted(stage.store)
    accept(stage.store, "o1")
    first = stage.worker(given)
    stage.order("o1", lambda order: order.status == "accepted")
    first.kill()
    first.wait()
    until(lambda: stage.paper.orders()[0]["status"] == "filled", "the broker has filled it")
    assert record(stage.store, "o1").status == "accepted"
    stage.worker(stage.succeed(given))
    stage.phase(Phase.READY)
    assert record(stage.store, "o1").status == "filled"


def test_a_broker_that_goes_away_shows_in_the_phase_and_its_return_too(stage: Stage) -> None:
    worker = stage.worker(wanted(stage.store))
    stage.phase(Phase.READY)
    stage.paper.kill()
    stage.phase(Phase.CONNECTING)
    accept(stage.store, "o1")
    stage.paper.start()
    stage.phase(Phase.READY)
    assert stage.order("o1", lambda order: order.final).status == "filled"
    assert worker.poll() is None, "an absence is no reason to end"


def test_a_slot_that_is_still_taken_is_waited_for(stage: Stage) -> None:
    stage.paper.faults(slot_hold_s=3.0)
    given = wanted(stage.store)
    first = stage.worker(given)
    stage.phase(Phase.READY)
    first.kill()
    first.wait()
    second = stage.worker(stage.succeed(given))
    until(lambda: "stream away" in _published(stage.store).get("reason", ""), "it says what it waits for")
    stage.phase(Phase.READY)
    assert second.poll() is None


def test_a_key_the_broker_does_not_accept_fails_the_user_for_good(stage: Stage) -> None:
    stage.put_secret("not-the-secret")
    assert stage.worker(wanted(stage.store)).wait(60) == Exit.REFUSED
    view = stage.store.one(steps.read_user("u1"))
    assert view.want is Want.FAILED
    assert "does not accept this key" in view.reason
    assert "not-the-secret" not in stage.log.read_text()


def test_a_cancel_ends_a_resting_order_at_the_broker(stage: Stage) -> None:
    stage.paper.faults(fill_after_s=60.0)
    stage.worker(wanted(stage.store))
    accept(stage.store, "o1")
    stage.order("o1", lambda order: order.status == "accepted")
    assert stage.store.one(cancel_order("u1", "o1")) == ("asked",)
    assert stage.order("o1", lambda order: order.final).status == "cancelled"
    assert stage.paper.orders()[0]["status"] == "canceled"


def test_the_secret_is_in_no_log_no_key_no_environment_and_no_message(stage: Stage) -> None:
    worker = stage.worker(wanted(stage.store))
    accept(stage.store, "o1")
    stage.order("o1", lambda order: order.final)
    until(stage.inbox_is_empty, "the check is on its queue")
    seen = stage.log.read_bytes()
    for name in ("environ", "cmdline"):
        seen += Path(f"/proc/{worker.pid}/{name}").read_bytes()
    seen += json.dumps(stage.aws.client("sqs").receive_message(QueueUrl=stage.queue), default=str).encode()
    for key in stage.store.client.keys("*"):
        seen += repr(_content(stage.store, key)).encode()
    assert b"o1" in seen, "something was looked at"
    assert CANARY.encode() not in seen


def test_a_worker_imports_nothing_between_its_claim_and_ready_and_never_boto3(stage: Stage) -> None:
    """Both would be paid by the user who waits, and by every user who is served."""
    code = """
import sys
import worker.preload, worker.boot as boot
before = set(sys.modules)
tell = boot._tell_ready
def told(*words):
    heavy = {"boto3", "botocore", "pydantic", "fastapi"} & set(sys.modules)
    print("imported", sorted(set(sys.modules) - before), "heavy", sorted(heavy), flush=True)
    tell(*words)
boot._tell_ready = told
sys.exit(boot.main())
"""
    stage.worker(wanted(stage.store), words=("-c", code))
    until(lambda: "heavy" in stage.log.read_text(), "the worker is ready")
    assert "imported [] heavy []" in stage.log.read_text()


def _published(store: Store) -> dict[str, Any]:
    return store.one(steps.read_user("u1")).published


def _content(store: Store, key: str) -> Any:
    readers = {"hash": "HGETALL", "string": "GET", "set": "SMEMBERS"}
    ranges = {"list": "LRANGE", "zset": "ZRANGE", "stream": "XRANGE"}
    kind = store.client.type(key)
    words = (readers[kind], key) if kind in readers else (ranges[kind], key, 0, -1)
    if kind == "stream":
        words = ("XRANGE", key, "-", "+")
    return store.one(Step(None, (), words, lambda reply: reply))
