"""What a sweep costs as the fleet grows: `python -m bench.sweep [--quick] [--users N]`.

The real coordinator and the real batches, in two processes as two functions would run at once, on one Valkey
and an ECS that counts. One user in a thousand is broken. Three sweeps: the third also judges and stops the
tasks that nobody owns, so it is the one that is measured. How fast ECS answers is not measured: its quota of
20 listing pages a second is the account's own limit, far below what a sweep could read.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import redis

from bench import fleet
from bench.counting import CountedConnection, counted
from local.valkey import EmbeddedValkey, embedded_valkey
from muster import blueprint, keys, steps
from muster.claims import ValkeyChannel
from muster.clock import SystemClock
from muster.deps import Deps
from muster.launchers.ecs import EcsLauncher
from muster.maintenance import Batch, BatchReport, sweep, sweep_batch
from muster.queues import SqsCommands
from muster.store import Step, Store, command

PROCESSES = 2
SIZES = (10_000, 100_000, 1_000_000)
QUICK_SIZES = SIZES[:2]
#: Users looked at before a fleet's CPU is believed.
SETTLED_USERS = 100_000
#: The goals.
SECONDS_PER_MILLION = 15.0
EXPONENT = 1.05
BYTES_PER_USER = 2048


class Side:
    """One process's end of the system: its own connections, its own count of calls."""

    def __init__(self, port: int, users: int) -> None:
        client = counted(redis.Redis(port=port, decode_responses=True, socket_timeout=60))
        self.store, self.ecs, self.sqs = Store(client), fleet.FakeEcs(users), fleet.FakeSqs()
        self.deps = Deps(
            store=self.store,
            launcher=EcsLauncher(self.ecs, "cluster", "worker:1", "workers", "worker"),
            channel=ValkeyChannel(client, "default"),
            commands=SqsCommands(self.sqs, "worker-control.fifo"),
            clock=SystemClock(),
            pool="default",
            version="v1",
            wake_pool=lambda: None,
        )

    def spent(self) -> Spent:
        """Everything since the last call."""
        spent = Spent(
            time.process_time(),
            CountedConnection.sent,
            self.ecs.calls + self.sqs.calls,
            list(self.sqs.groups),
        )
        CountedConnection.sent = 0
        for one in (self.ecs.calls, self.sqs.calls, self.sqs.groups):
            one.clear()
        return spent


@dataclass(slots=True)
class Spent:
    """CPU of the process so far; round trips, AWS calls and repaired users since the last report."""

    cpu_s: float
    round_trips: int
    calls: Counter[str]
    repaired: list[str]


_side: Side


def _open_side(port: int, users: int) -> None:
    global _side
    _side = Side(port, users)


def _run_batch(batch: Batch) -> tuple[BatchReport, float, Spent]:
    before = time.process_time()
    report = sweep_batch(_side.deps, batch)
    return report, time.process_time() - before, _side.spent()


@dataclass(slots=True)
class Row:
    """One sweep of one fleet."""

    users: int
    broken: int
    seconds: float = 0.0
    coordinator_s: float = 0.0
    cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    round_trips: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    bytes_per_user: float = 0.0
    orphans_stopped: int = 0
    lost: int = 0
    doubled: int = 0

    @property
    def aws_calls(self) -> int:
        return self.calls.total()


def measure(server: EmbeddedValkey, users: int) -> Row:
    """Fill the store, then sweep it three times or more; the row of the third, its CPU the mean of all since
    the second."""
    client = server.client()
    client.flushall()
    empty = client.info("memory")["used_memory"]
    began = time.monotonic()
    fleet.populate(Store(client), users)
    print(f"{users:,} users written in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    stored = (client.info("memory")["used_memory"] - empty) / users
    processor = psutil.Process(int(client.info("server")["process_id"]))
    me = Side(server.port, users)
    with multiprocessing.get_context("spawn").Pool(PROCESSES, _open_side, (server.port, users)) as pool:
        pool.map(abs, range(PROCESSES * 4))  # the processes are up
        rows = []
        # The server's CPU is told in hundredths of a second: a small fleet is swept until there are enough.
        for number in range(max(3, 2 + SETTLED_USERS // users)):
            rows.append(_sweep_once(me, pool, f"run-{number}", processor, users))
            took = f"{rows[-1].seconds:.2f} s, {rows[-1].cpu_s:.2f} CPU s"
            print(f"sweep {number + 1} of {users:,}: {took}", file=sys.stderr, flush=True)
    third = rows[2]
    third.cpu_s = statistics.fmean(row.cpu_s for row in rows[2:])
    third.server_cpu_s = statistics.fmean(row.server_cpu_s for row in rows[2:])
    third.bytes_per_user = stored
    return third


def _sweep_once(me: Side, pool: Any, run_id: str, server: psutil.Process, users: int) -> Row:
    started: list[Any] = []

    def invoke(batches: Sequence[Batch]) -> None:
        started.extend(pool.apply_async(_run_batch, (batch,)) for batch in batches)

    expected = fleet.all_broken(users)
    row = Row(users, len(expected))
    before = _cpu(server)
    own = time.process_time()
    began = time.monotonic()
    report = sweep(me.deps, run_id, invoke)
    row.coordinator_s = time.monotonic() - began
    answers = [answer.get() for answer in started]
    row.seconds = time.monotonic() - began
    row.server_cpu_s = _cpu(server) - before
    row.cpu_s = time.process_time() - own + sum(cpu for _, cpu, _ in answers) + row.server_cpu_s
    spent = [me.spent(), *(s for _, _, s in answers)]
    row.round_trips = sum(s.round_trips for s in spent)
    row.calls = sum((s.calls for s in spent), Counter({"Invoke": len(answers)}))
    repaired = Counter(user for s in spent for user in s.repaired)
    row.orphans_stopped = report.orphans_stopped
    row.lost = len(expected.keys() - repaired.keys()) + users - sum(r.users for r, _, _ in answers)
    row.doubled = repaired.total() - len(repaired) + len(repaired.keys() - expected.keys())
    return row


def due_index(server: EmbeddedValkey, users: int) -> dict[str, Any]:
    """What the alternative would cost: a due time written at every beat, instead of a glance at every sweep.

    In CPU of the one thread that all beats share. See docs/decisions/0011.
    """
    store = Store(server.client(socket_timeout=60))
    process = psutil.Process(int(store.client.info("server")["process_id"]))
    names = [fleet.user(number) for number in range(min(users, 100_000))]

    def per_user_us(reads: Callable[[str], Sequence[Step[Any]]]) -> float:
        before = _cpu(process)
        for start in range(0, len(names), 500):
            store.run(*chain.from_iterable(map(reads, names[start : start + 500])))
        return (_cpu(process) - before) / len(names) * 1e6

    def due(user: str) -> Sequence[Step[int]]:
        # One user in a thousand is overdue.
        at = 0 if int(user[-8:]) % fleet.BROKEN_EVERY == 0 else 1
        return (command("ZADD", f"users:due:{keys.bucket_of(user):02x}", at, user, parse=int),)

    glance, _, zadd = per_user_us(steps.glance), per_user_us(due), per_user_us(due)
    looks = [
        command("ZRANGEBYSCORE", f"users:due:{bucket:02x}", "-inf", 0, parse=len)
        for bucket in range(blueprint.INDEX_BUCKETS)
    ]
    began = time.monotonic()
    found = sum(store.run(*looks))
    return {
        "a glance, us of Valkey": round(glance, 1),
        "a due time, us of Valkey": round(zadd, 1),
        f"finding {found} overdue of {len(names):,} in a due index, ms": round(
            1000 * (time.monotonic() - began), 1
        ),
        "due times a sweep period, us of Valkey per user": round(
            zadd * (blueprint.FN_MAINTENANCE.every or blueprint.MARK_TTL) / blueprint.MARK_BEAT, 1
        ),
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def exponent(rows: Sequence[Row]) -> float:
    """Slope of CPU seconds over users on logarithmic scales, by least squares: 1 is linear."""
    points = [(math.log(row.users), math.log(row.cpu_s)) for row in rows]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return above / sum((x - mean_x) ** 2 for x, _ in points)


def answer(rows: Sequence[Row]) -> dict[str, Any]:
    """The contract's object; the ratios are of the largest fleet."""
    last = rows[-1]
    millions = last.users / 1_000_000
    # What the calls may be: one per broken user and orphan, one page per hundred tasks and kind of task.
    allowed = last.broken + last.users // fleet.ORPHAN_EVERY + math.ceil(last.users * 1.0002 / 100) + 3
    aws = last.aws_calls - last.calls["Invoke"]
    figures: dict[str, Any] = {}
    for row in rows:
        figures |= {
            f"{row.users:,} users, seconds": round(row.seconds, 3),
            f"{row.users:,} users, CPU seconds (Valkey's part)": f"{row.cpu_s:.2f} ({row.server_cpu_s:.2f})",
            f"{row.users:,} users, Valkey round trips": row.round_trips,
            f"{row.users:,} users, AWS calls": ", ".join(f"{v} {k}" for k, v in sorted(row.calls.items())),
            f"{row.users:,} users, bytes each": round(row.bytes_per_user),
        }
    grown = exponent(rows)
    figures |= {"growth exponent": round(grown, 3)}
    return {
        "ratios": {
            "goal_seconds_per_million_vs_seen": round(SECONDS_PER_MILLION * millions / last.seconds, 3),
            "goal_cpu_seconds_per_million_vs_seen": round(
                PROCESSES * SECONDS_PER_MILLION * millions / last.cpu_s, 3
            ),
            "goal_exponent_vs_seen": round(EXPONENT / grown, 3),
            "goal_bytes_per_user_vs_seen": round(BYTES_PER_USER / last.bytes_per_user, 3),
            "allowed_aws_calls_vs_seen": round(allowed / aws, 3),
        },
        "figures": figures,
        "lost": sum(row.lost for row in rows)
        + sum(row.users // fleet.ORPHAN_EVERY - row.orphans_stopped for row in rows),
        "doubled": sum(row.doubled for row in rows),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10k and 100k users only")
    parser.add_argument("--users", type=int, action="append", help="these sizes instead; may be repeated")
    parser.add_argument("--json", type=Path, help="write the answer here too")
    options = parser.parse_args(argv)
    if options.users and len(set(options.users)) < 2:
        parser.error("give --users at least twice: the growth is between two sizes")
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder,
        embedded_valkey(Path(folder)) as server,
    ):
        for users in options.users or (QUICK_SIZES if options.quick else SIZES):
            rows.append(measure(server, users))
        alternative = due_index(server, rows[-1].users)
    said = answer(rows)
    said["figures"] |= alternative
    for name, value in (said["figures"] | said["ratios"]).items():
        print(f"{name:55}{value!s:>30}")
    print(f"lost {said['lost']}, doubled {said['doubled']}")
    if options.json:
        options.json.write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
