"""`muster demo`: the whole story in about a minute, with its figures at the end."""

from __future__ import annotations

import json
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from local.driver import EngineProcess, send_signal, until
from local.trader import Trader

USERS = 20
POOL = 8
KILLS = 5
#: The sweep runs this much faster than on AWS, so that the frozen worker is found within the minute.
SPEED = 10


@dataclass
class Summary:
    """What the demonstration saw. `promises_broken` is empty when all went well."""

    users: int = USERS
    warm_starts: int = 0
    cold_starts: int = 0
    warm_p50_ms: float = 0
    warm_p95_ms: float = 0
    cold_p50_ms: float = 0
    cold_p95_ms: float = 0
    killed: int = 0
    heal_p50_ms: float = 0
    heal_p95_ms: float = 0
    frozen_replaced_s: float = 0
    orders_accepted: int = 0
    orders_agreeing_with_the_book: int = 0
    orders_executed_twice: int = 0
    order_p50_ms: float = 0
    order_p95_ms: float = 0
    double_workers: int = 0
    commands_accepted: int = 0
    commands_unaccounted: int = 0
    seconds: float = 0
    promises_broken: list[str] = field(default_factory=list)


def demo(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Start 20 users, trade, kill 5 workers, freeze one, stop all; then say what was seen.

    Each worker holds its user's session at a paper broker, so that ready means connected. Needs no account
    anywhere.

    Example: muster demo --json
    """
    from rich.console import Console

    console = Console(stderr=True, quiet=json_output)
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
        summary = _Demo(Path(folder), console).run()
    if json_output:
        print(json.dumps(asdict(summary)))
    else:
        _print(summary, console)
    raise typer.Exit(1 if summary.promises_broken else 0)


class _Demo:
    """One run on an engine of its own."""

    def __init__(self, folder: Path, console: Any) -> None:
        self._engine = EngineProcess(
            folder / "engine", "--pool", str(POOL), "--speed", str(SPEED), "--session", "broker"
        )
        self._trader = Trader(self._engine)
        self._console = console
        self._summary = Summary()
        self._users = [f"user-{number:02}" for number in range(1, USERS + 1)]
        self._frozen: int | None = None
        self._calm: list[str] = []  #: orders placed while nothing was wrong

    def run(self) -> Summary:
        began = time.monotonic()
        self._say("starting Valkey, the queues, the functions, the API and a paper broker")
        code = 1
        try:
            self._engine.start()
            self._story()
        finally:
            if self._frozen is not None:
                send_signal(self._frozen, signal.SIGCONT)
            if self._engine.process is not None and self._engine.process.poll() is None:
                code = self._engine.stop()
        self._audit_end(code)
        self._engine.end()
        self._summary.seconds = round(time.monotonic() - began, 1)
        return self._summary

    def _story(self) -> None:
        self._trader.turn()
        self._say(f"filling a warm pool of {POOL}")
        until(lambda: self._engine.get("/v1/pool")["idle"] >= POOL, "the pool is full", 40)

        self._say(f"starting {USERS} users at once: {POOL} warm workers are waiting, the others start cold")
        for user in self._users:
            self._command(user, "start")
        self._watch(lambda rows: all(row["phase"] == "ready" for row in rows), 40, "all users are ready")
        self._measure_starts()
        self._say("everybody is connected to the broker: one order each")
        self._calm = [self._trader.place(user) for user in self._users]

        first, *others = self._engine.workers()
        self._frozen = first["pid"]
        frozen_at, frozen_epoch = time.monotonic(), first["epoch"]
        send_signal(self._frozen, signal.SIGSTOP)
        self._say(f"froze the worker of {first['user_id']} (SIGSTOP): its mark runs out in 30 s")

        self._kill(others[:KILLS])

        name = first["user_id"]
        self._trader.place(name)
        self._say(f"one more order for {name}: its successor must find it, and only once")

        def replaced(rows: list[dict[str, Any]]) -> bool:
            return any(
                row["user_id"] == name and row["phase"] == "ready" and row["epoch"] > frozen_epoch
                for row in rows
            )

        self._watch(replaced, 75, "the frozen worker has a successor")
        self._summary.frozen_replaced_s = round(time.monotonic() - frozen_at, 1)
        send_signal(self._frozen, signal.SIGCONT)
        self._say("woke the frozen worker: it must leave without acting")

        self._judge_orders()
        self._say("stopping all users")
        for user in self._users:
            self._command(user, "stop")
        self._watch(lambda rows: all(row["phase"] == "stopped" for row in rows), 40, "all users are stopped")
        self._account()

    def _kill(self, victims: list[dict[str, Any]]) -> None:
        self._say(f"killing {len(victims)} workers with SIGKILL: " + ", ".join(v["user_id"] for v in victims))
        killed_at = {}
        for victim in victims:
            self._trader.place(victim["user_id"])  # it may be sent, recorded or neither when the axe falls
            killed_at[victim["user_id"]] = time.time()
            send_signal(victim["pid"], signal.SIGKILL)
        before = {victim["user_id"]: victim["epoch"] for victim in victims}

        def healed(rows: list[dict[str, Any]]) -> bool:
            return all(
                row["phase"] == "ready" and row["epoch"] > before[row["user_id"]]
                for row in rows
                if row["user_id"] in before
            )

        self._watch(healed, 40, "all killed workers are replaced")
        heals = [
            (datetime.fromisoformat(row["since"]).timestamp() - killed_at[row["user_id"]]) * 1000
            for row in self._engine.workers()
            if row["user_id"] in before
        ]
        self._summary.killed = len(heals)
        self._summary.heal_p50_ms, self._summary.heal_p95_ms = _percentiles(heals)

    def _measure_starts(self) -> None:
        rows = self._engine.workers()
        warm = [row["start_latency_ms"] for row in rows if row["via"] == "warm"]
        cold = [row["start_latency_ms"] for row in rows if row["via"] == "cold"]
        summary = self._summary
        summary.warm_starts, summary.cold_starts = len(warm), len(cold)
        summary.warm_p50_ms, summary.warm_p95_ms = _percentiles(warm)
        summary.cold_p50_ms, summary.cold_p95_ms = _percentiles(cold)

    def _judge_orders(self) -> None:
        """The broker's own book and its own list of connections are asked, not Muster."""
        self._say("waiting until the broker was asked about every order")
        summary = self._summary
        try:
            until(lambda: not self._trader.unverified(), "every order is verified", 60)
        except TimeoutError as late:
            summary.promises_broken.append(str(late))
        judged = self._trader.judge()
        summary.orders_accepted, summary.orders_agreeing_with_the_book = judged.orders, judged.agreed
        summary.orders_executed_twice = judged.executed_twice
        summary.promises_broken += judged.wrong
        summary.order_p50_ms, summary.order_p95_ms = _percentiles(self._trader.to_final_ms(self._calm))
        doubled = sorted({one.key_id for one in self._trader.shared()})
        summary.double_workers = len(doubled)
        if doubled:
            summary.promises_broken.append(f"the broker saw two workers at once for {', '.join(doubled)}")

    def _account(self) -> None:
        """Every accepted command has ended: nothing waits, nothing is in flight, nothing is parked."""
        left: list[dict[str, Any]] = []

        def empty() -> bool:
            left[:] = [q for q in self._engine.get("/v1/queues") if q["name"] == "worker-control.fifo"]
            return all(q["depth"] + q["in_flight"] + q["dead_letter"] == 0 for q in left)

        try:
            until(empty, "the queues are empty", 20)
        except TimeoutError:
            self._summary.commands_unaccounted = sum(q["depth"] + q["in_flight"] for q in left)
            self._summary.promises_broken.append("commands were left in the queue or parked")

    def _audit_end(self, exit_code: int) -> None:
        """Whether it ended in order, and what is left."""
        if exit_code != 0:
            self._summary.promises_broken.append(f"the engine ended with {exit_code}: see its log")
        left = [process.pid for process in self._engine.processes()]
        if left:
            self._summary.promises_broken.append(f"processes left running: {left}")

    def _command(self, user: str, action: str) -> None:
        self._engine.command(user, action)
        self._summary.commands_accepted += 1

    def _watch(self, done: Callable[[list[dict[str, Any]]], bool], seconds: float, what: str) -> None:
        """Wait for a state of the fleet while a table shows it."""
        from rich.live import Live

        with Live(console=self._console, refresh_per_second=8, transient=True) as live:

            def look() -> bool:
                rows = self._engine.workers()
                live.update(_table(rows))
                return done(rows)

            try:
                until(look, what, seconds)
            except TimeoutError as late:
                self._summary.promises_broken.append(str(late))

    def _say(self, words: str) -> None:
        self._console.print(f"[dim]•[/dim] {words}")


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("user", "phase", "via", "pid", "started in", "why", title="the fleet")
    for row in rows:
        latency = f"{row['start_latency_ms']:.0f} ms" if row["start_latency_ms"] is not None else ""
        table.add_row(
            row["user_id"],
            row["phase"],
            row["via"] or "",
            str(row["pid"] or ""),
            latency,
            row["reason"] or "",
        )
    return table


def _print(summary: Summary, console: Any) -> None:
    from rich.table import Table

    table = Table("what", "p50", "p95", title="What was seen")
    for what, count, p50, p95 in (
        ("warm start", summary.warm_starts, summary.warm_p50_ms, summary.warm_p95_ms),
        ("cold start", summary.cold_starts, summary.cold_p50_ms, summary.cold_p95_ms),
        ("healed after SIGKILL", summary.killed, summary.heal_p50_ms, summary.heal_p95_ms),
        ("order accepted to filled", USERS, summary.order_p50_ms, summary.order_p95_ms),
    ):
        # The pool may refill so quickly that nobody starts cold.
        shown = (f"{p50} ms", f"{p95} ms") if count else ("-", "-")
        table.add_row(f"{what} ({count})", *shown)
    console.print(table)
    console.print(
        f"orders accepted {summary.orders_accepted}, as in the broker's book "
        f"{summary.orders_agreeing_with_the_book}, executed twice {summary.orders_executed_twice}"
    )
    console.print(f"frozen worker replaced after {summary.frozen_replaced_s} s (its mark lasts 30 s)")
    console.print(
        f"commands accepted {summary.commands_accepted}, unaccounted {summary.commands_unaccounted}"
    )
    console.print(f"double workers seen by the broker {summary.double_workers}, {summary.seconds} s in all")
    for broken in summary.promises_broken:
        console.print(f"PROMISE BROKEN: {broken}", style="bold red")
    if not summary.promises_broken:
        console.print("every promise was kept", style="green")


def _percentiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (round(values[0], 1),) * 2 if values else (0.0, 0.0)
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return round(cuts[9], 1), round(cuts[18], 1)
