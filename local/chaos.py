"""Chaos on real processes: load and orders, faults on everything around the workers, an audit from outside.

The judge is not the system itself: the workers' own journals say who acted when, the broker's book and its
list of connections say what was traded by whom, the processes say who lives, and the driver remembers what it
asked for last. One seed gives one plan of faults.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import redis

from local.chaos_faults import Deck, Faults, Missed
from local.chaos_load import EVERY_S, SILENCE_S, Span, Witness, measure_heals, served
from local.chaos_report import BEAT_S, SHARED_AFTER_LOSS_S, Fault, Report
from local.checks import PLANNED
from local.driver import EngineProcess, until
from local.trader import Trader
from muster import blueprint
from worker.journal import acting, overlaps

USERS = 10
POOL = 3
SPEED = 10
#: Orders placed before each fault, so that some are in every stage when it strikes.
ORDERS = 4
#: Between two faults: long enough for a heal, short enough to overlap with the next trouble.
PAUSE_S = (2.0, 6.0)
#: How long a fault that needs calm waits for it: for the fleet, and for the orders.
CALM_S = 15.0
#: After the last fault the fleet must settle within a frozen worker's longest replacement.
SETTLE_S = 120.0
#: A check that a killed engine had in hand comes back after three minutes; this is for all others.
VERIFY_S = 30.0
#: An API that takes longer does not answer.
ANSWER_S = 1.0


class Chaos:
    """One run. `say` gets a line per fault."""

    def __init__(self, folder: Path, seed: int, seconds: float, say: Callable[[str], None]) -> None:
        self._journal = folder / "journal"
        self._journal.mkdir(parents=True)
        self._engine = EngineProcess(
            folder / "engine",
            *("--pool", str(POOL), "--speed", str(SPEED), "--session", "worker.journal:TradingJournal"),
            env={"MUSTER_SESSION_JOURNAL": str(self._journal)},
        )
        self._random = random.Random(seed)  # noqa: S311 - a plan that can be repeated, not a secret
        self._trader = Trader(self._engine)
        self._faults = Faults(self._engine, self._trader, self._random, self._lose)
        self._deck = Deck(self._faults.all(), self._random)
        self._seconds = seconds
        self._say = say
        self.report = Report(seed, kinds=[kind.name for kind in self._faults.all()])
        self._wanted: dict[str, bool] = {}
        self._witness = Witness()
        #: Commands whose answer was lost: nobody knows whether they count. user -> (action, key)
        self._doubtful: dict[str, tuple[str, str]] = {}
        self._losses: list[tuple[float, float]] = []  #: seconds since boot, and since 1970
        self._done = threading.Event()

    def run(self) -> Report:
        """Load, faults, settle, audit."""
        try:
            self._engine.start()
            self._began, self._began_at = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
            until(self._faults.turn_knobs, "the broker answers", 10)
            for number in range(USERS):
                self._ask(f"u{number}", "start")
            self._settled(60)
            prober = threading.Thread(target=self._probe, daemon=True)
            prober.start()
            while self._now() < self._seconds:
                self._load()
                self._inject()
                self._faults.pause(self._random.uniform(*PAUSE_S))
            self._faults.wake_all()
            self._say("no more faults: the fleet must settle")
            _within(self._no_doubts, "every command is accepted or refused", SETTLE_S)
            self._settled(SETTLE_S)
            self._done.set()
            prober.join()
            ended = self._now()
            self.report.lost_commands = self._unsettled() + sorted(self._doubtful)
            self._audit_orders()
            connections = self._trader.connections()
            self._engine.stop()
        finally:
            self._done.set()
            self._faults.wake_all()
            self.report.processes_left = [" ".join(left.cmdline()) for left in self._engine.processes()]
            self._engine.end()
        self.report.seconds = self._now()
        self._measure(connections, ended)
        self._audit_journals()
        return self.report

    def _now(self) -> float:
        """Seconds since the begin, on the clock of the workers' journals."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._began

    def _inject(self) -> None:
        kind = self._deck.draw()
        fault = Fault(0.0, kind.name)
        try:
            if kind.needs_calm:
                self._faults.wake_all()
                if not self._calm(CALM_S):
                    raise Missed("the fleet did not settle for it")
            fault.at_s = self._now()
            fault.target = kind.strike()
            fault.struck_s = self._now()
        except Missed as missed:
            self._deck.missed(kind)
            self.report.missed.append(f"{kind.name}: {missed}")
            self._say(f"{self._now():6.1f} s  {kind.name}: missed, {missed}")
            return
        self.report.faults.append(fault)
        self._say(f"{fault.at_s:6.1f} s  {kind.name} {fault.target}")

    def _load(self) -> None:
        """A person changes their mind now and then, and everybody trades."""
        self._no_doubts()
        user = f"u{self._random.randrange(USERS)}"
        self._ask(user, self._random.choice(["start", "start", "start", "restart", "stop"]))
        for _ in range(ORDERS):
            user, qty = f"u{self._random.randrange(USERS)}", self._random.randint(1, 9)
            if not self._wanted.get(user):
                continue
            try:
                self._trader.place(user, qty)
            except httpx.HTTPError:
                self.report.orders_refused += 1

    def _ask(self, user: str, action: str, key: str = "") -> None:
        """A command counts when the API accepted it, and does not when the API refused it. When its answer
        was lost nobody knows, until it was sent again with its key."""
        key, asked = key or uuid.uuid4().hex, self._now()
        want: bool | None = None
        try:
            self._engine.command(user, action, key)
        except httpx.HTTPError as failed:
            self.report.commands_refused += 1
            if isinstance(failed, httpx.HTTPStatusError) and failed.response.status_code < 500:
                return
            self._doubtful[user] = action, key
        else:
            self.report.commands += 1
            self._doubtful.pop(user, None)
            want = self._wanted[user] = action != "stop"
        self._witness.wishes.append((self._now(), user, want))
        self._witness.commands.append((asked, self._now(), user))

    def _no_doubts(self) -> bool:
        """Send again what may have been lost; whether everything has its answer."""
        for user, (action, key) in list(self._doubtful.items()):
            self._ask(user, action, key)
        return not self._doubtful

    def _lose(self) -> None:
        """The store is about to lose everything: the orders so far are judged now."""
        judged = self._trader.judge(close=True)
        self.report.orders_wrong += judged.wrong
        self._losses.append((time.clock_gettime(time.CLOCK_BOOTTIME), time.time()))

    def _calm(self, seconds: float) -> bool:
        """Whether the fleet is as wanted and every order has its end, each within so many seconds."""
        if not _within(self._no_doubts, "every command is accepted or refused", seconds):
            return False
        self._start_traders()
        return self._settled(seconds) and self._orders_end(seconds)

    def _settled(self, seconds: float) -> bool:
        return _within(lambda: self._unsettled() == [], "the fleet is as wanted", seconds)

    def _orders_end(self, seconds: float) -> bool:
        return _within(lambda: not self._trader.unfinished(), "every order has its end", seconds)

    def _checks_wait(self) -> bool:
        """Whether a check is on its queue, in flight, parked or planned."""
        queues = [q for q in self._engine.get("/v1/queues") if q["name"] == blueprint.ORDER_TASKS.name]
        store = redis.Redis.from_url(self._engine.endpoints["valkey"])
        planned = store.zcard(PLANNED)
        store.close()
        return bool(planned or any(q["depth"] + q["in_flight"] + q["dead_letter"] for q in queues))

    def _unsettled(self) -> list[str]:
        """Users that are not as last asked. One whose last command is in doubt may be either way."""
        phases = {row["user_id"]: row["phase"] for row in self._engine.workers()}
        wanted = {user: want for user, want in self._wanted.items() if user not in self._doubtful}
        return [
            user
            for user, running in wanted.items()
            if (phases.get(user) == "ready") != running
            or (not running and phases.get(user, "stopped") != "stopped")
        ]

    def _probe(self) -> None:
        """Ten times a second: does the API answer with what it knows of the workers?"""
        while not self._done.wait(EVERY_S):
            asked = self._now()
            try:
                answered = bool(self._engine.api.get("/v1/workers?limit=1", timeout=ANSWER_S).is_success)
            except (httpx.HTTPError, OSError, RuntimeError):  # the last of a client that was just replaced
                answered = False
            self._witness.answers.append((asked, answered))

    def _measure(self, connections: dict[str, list[Span]], until: float) -> None:
        """The load held and the heals, by the workers' journals and the broker's list of connections."""
        report = self.report
        acts = {
            user: [(first - self._began, last - self._began) for first, last in spans]
            for user, spans in acting(self._journal, SILENCE_S).items()
        }
        connected = {
            user: [(opened - self._began_at, closed - self._began_at) for opened, closed in spans]
            for user, spans in connections.items()
        }
        killed = [fault.at_s for fault in report.faults if fault.kind == "kill broker"]
        report.samples = self._witness.samples(served(acts, connected, killed), until)
        measure_heals(report.faults, report.samples, self._witness)

    def _start_traders(self) -> None:
        """The orders of a user who was stopped wait for the next start: here it is."""
        for user in self._trader.users:
            if not self._wanted.get(user):
                self._ask(user, "start")

    def _audit_orders(self) -> None:
        """Every order that was accepted has an end, and the broker knows which."""
        self._start_traders()
        self._settled(SETTLE_S)
        self._orders_end(SETTLE_S)
        _within(lambda: not self._trader.unverified(), "every order is verified", VERIFY_S)
        judged, report = self._trader.judge(), self.report
        report.orders, report.orders_agreed = judged.orders, judged.agreed
        report.orders_sent_twice, report.orders_executed_twice = judged.sent_twice, judged.executed_twice
        report.orders_wrong += judged.wrong
        report.orders_unverified = judged.unverified
        if judged.unverified and not self._checks_wait():
            report.orders_wrong.append(f"{judged.unverified} orders will never be verified: no check is left")
        report.order_lives = [
            (accepted - self._began_at, checked - self._began_at)
            for accepted, checked in self._trader.lives()
            if checked is not None
        ]
        for one in self._trader.shared():
            if any(0 <= one.ended - loss <= 2 * SHARED_AFTER_LOSS_S for _, loss in self._losses):
                report.shared_after_loss.append(one.ended - one.began)
            else:
                report.double_sessions += 1

    def _audit_journals(self) -> None:
        """An overlap right after a loss of data has a bound of its own; any other is one too many."""
        for overlap in overlaps(self._journal):
            if any(0 <= overlap.until - loss <= 2 * BEAT_S for loss, _ in self._losses):
                self.report.overlaps_after_loss.append(overlap.seconds)
            else:
                self.report.double_workers += 1


def _within(done: Callable[[], bool], what: str, seconds: float) -> bool:
    def look() -> bool:
        try:
            return done()
        except httpx.HTTPError:
            return False

    try:
        until(look, what, seconds)
    except TimeoutError:
        return False
    return True
