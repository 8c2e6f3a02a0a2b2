"""From start command to ready: Muster warm and cold against what else starts processes, in one run.

    python -m bench.start [--quick] [--json PATH] [--ray]

Every worker of every contender opens the same paper broker session: secret, account, stream, open orders. For
Muster the clock runs from the accepted API command to the ready mark, the whole control path included; for a
peer, from the moment its supervisor is told. The peers' worker is the session alone, no mark, no heartbeat.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from api.auth import Role
from api.signing import Signer
from bench import start_peers
from bench.start_plot import bars
from local.driver import EngineProcess, until
from local.paper.audit import overlaps
from muster import keys

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / "build" / "bench" / "start"
PEERS = ("plain exec", "supervisord", "circus", "pm2", "jupyterhub spawner")
#: A start that takes longer is lost.
PATIENCE_S = 90.0
#: The API keeps an idle connection for five seconds.
KEPT_S = 3.0


@dataclass
class Contender:
    """What was seen of one way to start a worker: milliseconds, and workers per second by size of burst."""

    name: str
    latencies: list[float] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)
    lost: int = 0
    doubled: int = 0

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.latencies, n=20, method="inclusive")[18]


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


class Stage:
    """One engine with a paper broker; peers use its servers too."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.engine = EngineProcess(folder, "--session", "broker", *options)
        self.engine.start()
        self.valkey: Any = redis.Redis.from_url(self.engine.endpoints["valkey"], decode_responses=True)
        self._token = Signer.read(folder).token(Role.OPERATOR, ttl=timedelta(hours=1))
        self._own = threading.local()

    def close(self) -> None:
        self.engine.stop()
        self.engine.end()

    def give_accounts(self, users: Iterable[str]) -> None:
        """Their credentials exist before they are started, as anybody's would."""
        import boto3

        client = boto3.client(
            "secretsmanager",
            region_name="us-east-1",
            endpoint_url=self.engine.endpoints["aws"],
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        for user in users:
            said = {"broker": "paper", "key_id": f"paper-{user}", "secret": secrets.token_hex(20)}
            said["url"] = self.engine.endpoints["paper"]
            client.create_secret(Name=f"bench/{user}", SecretString=json.dumps(said))

    def pool(self, size: int) -> None:
        """Fill or empty the pool. One run of its manager launches only so many: it is woken until done."""

        def there() -> bool:
            self.engine.api.put("/v1/pool", json={"target": size}).raise_for_status()
            until_idle = time.monotonic() + 2
            while time.monotonic() < until_idle:
                if self.engine.get("/v1/pool")["idle"] == size:
                    return True
                time.sleep(0.05)
            return False

        until(there, f"a pool of {size}", 120)

    def start(self, user: str) -> None:
        """One command, on the thread's own connection: the sender shares the cores with what it measures."""
        if not hasattr(self._own, "api"):
            self._own.api = HTTPConnection(urlsplit(self.engine.endpoints["api"]).netloc, timeout=30)
            self._own.used = time.monotonic()
        if time.monotonic() - self._own.used > KEPT_S:
            self._own.api.close()  # the next request opens it again
        self._own.used = time.monotonic()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        body = json.dumps({"credentials_ref": f"bench/{user}"})
        self._own.api.request("POST", f"/v1/workers/{user}/start", body, headers)
        answer = self._own.api.getresponse()
        if answer.status != HTTPStatus.ACCEPTED:
            raise RuntimeError(f"the start of {user} was answered with {answer.status} {answer.read()!r}")
        answer.read()

    def times(self, users: list[str]) -> dict[str, tuple[float, float, str]]:
        """User -> accepted, ready (ms since 1970), via; when all are ready, or patience has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pipe = self.valkey.pipeline(transaction=False)
            for user in users:
                pipe.hmget(keys.active(user), "issued_at", "ready_at", "via")
            seen = {
                user: (float(row[0]), float(row[1]), row[2])
                for user, row in zip(users, pipe.execute(), strict=True)
                if row[1]
            }
            if len(seen) == len(users) or time.monotonic() > deadline:
                return seen
            # The store has written the moments down: looking more often would only take the cores' time.
            time.sleep(0.01 if len(users) == 1 else 0.1)

    def doubled(self, users: set[str]) -> int:
        """Accounts that had two streams at once, from the broker's own book."""
        import httpx

        sessions = httpx.get(f"{self.engine.endpoints['paper']}/audit/sessions").json()
        return sum(key.removeprefix("paper-") in users for key in overlaps(sessions, time.time()))


def muster(
    stage: Stage, name: str, prefix: str, count: int, bursts: dict[int, Callable[[], None]], via: str
) -> Contender:
    """Starts one after the other, then in bursts; `bursts` says how to prepare each."""
    seen = Contender(name)
    everybody = [f"{prefix}-{n}" for n in range(count + sum(bursts))]
    stage.give_accounts(everybody)
    users = iter(everybody)

    other_way = 0
    for _ in range(count):
        user = next(users)
        stage.start(user)
        times = stage.times([user])
        seen.lost += 1 - len(times)
        seen.latencies += [ready - accepted for accepted, ready, went in times.values() if went == via]
    for size, prepare in bursts.items():
        prepare()
        batch = [next(users) for _ in range(size)]
        with ThreadPoolExecutor(8) as senders:
            list(senders.map(stage.start, batch))
        times = stage.times(batch)
        seen.lost += size - len(times)
        other_way += sum(went != via for _, _, went in times.values())
        first, last = min(t[0] for t in times.values()), max(t[1] for t in times.values())
        seen.rates[size] = len(times) / (last - first) * 1000
    seen.doubled = stage.doubled(set(everybody))
    if other_way:
        say(f"    {other_way} workers of the bursts did not start {via}")
    say(f"  {name}: p50 {seen.p50:.1f} ms, " + ", ".join(f"{r:.0f}/s of {n}" for n, r in seen.rates.items()))
    return seen


def peer(stage: Stage, name: str, folder: Path, count: int, bursts: Iterable[int]) -> Contender:
    bursts = list(bursts)
    seen = Contender(name)
    env = {"BENCH_VALKEY": stage.engine.endpoints["valkey"], "BENCH_AWS": stage.engine.endpoints["aws"]}
    most = count + sum(bursts)
    running = start_peers.Peer(name, SCRATCH, folder, most, env)
    users = [f"{running.users}-{n}" for n in range(most)]
    try:
        stage.give_accounts(users)
        for number in range(count):
            began = time.time()
            running.start(number)
            ready = _ready(stage, users[number : number + 1])
            seen.lost += 1 - len(ready)
            seen.latencies += [(at - began) * 1000 for at in ready]
        _end_workers(stage)
        number = count
        for size in bursts:
            began = time.time()
            for n in range(number, number + size):
                running.start(n)
            ready = _ready(stage, users[number : number + size])
            seen.lost += size - len(ready)
            seen.rates[size] = len(ready) / (max(ready) - began)
            number += size
            _end_workers(stage)
    finally:
        _end_workers(stage)
        running.close()
    counts = stage.valkey.mget([f"bench:starts:{user}" for user in users])
    seen.doubled = sum(int(times or 0) > 1 for times in counts)
    say(f"  {name}: p50 {seen.p50:.1f} ms, " + ", ".join(f"{r:.0f}/s of {n}" for n, r in seen.rates.items()))
    return seen


def _ready(stage: Stage, users: list[str]) -> list[float]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = [float(at) for at in stage.valkey.mget([f"bench:ready:{user}" for user in users]) if at]
        if len(seen) == len(users) or time.monotonic() > deadline:
            return seen
        time.sleep(0.005)


def _end_workers(stage: Stage) -> None:
    """The workers of a peer, by the numbers they wrote down themselves."""
    while pid := stage.valkey.lpop("bench:pids"):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def limit(stage: Stage, count: int) -> float:
    """A waiting process that is handed its user through BLPOP, connects to a server on loopback and sets its
    ready key, with no control plane and no session: p50 in milliseconds."""
    env = os.environ | {
        "BENCH_VALKEY": stage.engine.endpoints["valkey"],
        "BENCH_SERVER": urlsplit(stage.engine.endpoints["paper"]).netloc,
        "PYTHONPATH": str(ROOT),
    }
    waiting = [
        subprocess.Popen([sys.executable, "-m", "bench.start_worker", "--waiting"], env=env) for _ in range(2)
    ]
    try:
        until(lambda: stage.valkey.llen("bench:waiting") == len(waiting), "two waiting processes")
        seen = []
        for number in range(count):
            began = time.time()
            stage.valkey.rpush("bench:limit", f"limit-{number}")
            seen += [(at - began) * 1000 for at in _ready(stage, [f"limit-{number}"])]
        return statistics.median(seen)
    finally:
        for process in waiting:
            process.kill()
            process.wait()


def measure(folder: Path, quick: bool, ray: bool) -> tuple[dict[str, Contender], float]:
    count, sizes = (10, [50]) if quick else (20, [50, 200])
    #: Twice what is taken one after the other: a pool below half of its target is refilled meanwhile.
    some = 2 * count + 2
    found: dict[str, Contender] = {}

    def add(contender: Contender) -> None:
        found[contender.name] = contender

    say("installing the peers (once)")
    start_peers.install(SCRATCH, ray=ray)
    say("muster, forked workers, claims over Valkey")
    stage = Stage(folder / "fork", "--pool", "0")
    try:
        stage.pool(some)
        fill = dict.fromkeys(sizes, lambda: stage.pool(max(sizes)))
        add(muster(stage, "muster warm", "warm", count, fill, "warm"))
        stage.pool(0)
        until(lambda: stage.engine.get("/v1/pool")["launching"] == 0, "no pool worker is on its way", 60)
        stage.pool(0)
        add(muster(stage, "muster cold, fork", "forked", count, dict.fromkeys(sizes, lambda: None), "cold"))
        _stop_all(stage)
        blpop = limit(stage, 200)
        say(f"  a waiting process behind BLPOP: p50 {blpop:.2f} ms")
        for number, name in enumerate((*PEERS, *(["ray actor"] if ray else []))):
            add(peer(stage, name, folder / f"peer-{number}", count, sizes))
    finally:
        stage.close()
    say("muster, executed workers")
    stage = Stage(folder / "exec", "--pool", "0", "--launch", "exec")
    try:
        small = dict.fromkeys(sizes[:1], lambda: None)
        add(muster(stage, "muster cold, exec", "executed", count, small, "cold"))
        _stop_all(stage)
        add(replace_name(peer(stage, "plain exec", folder / "again", count, []), "plain exec, again"))
    finally:
        stage.close()
    say("muster, claims over SQS")
    stage = Stage(folder / "sqs", "--pool", "0", "--claim-channel", "sqs")
    try:
        stage.pool(some)
        add(muster(stage, "muster warm, SQS", "sqs", count, {}, "warm"))
    finally:
        stage.close()
    return found, blpop


def replace_name(seen: Contender, name: str) -> Contender:
    seen.name = name
    return seen


def _stop_all(stage: Stage) -> None:
    """Give the cores back before the next contender."""
    rows = [row for row in stage.engine.workers() if row["phase"] != "stopped"]
    with ThreadPoolExecutor(8) as senders:
        list(senders.map(lambda row: stage.engine.command(row["user_id"], "stop"), rows))
    until(lambda: all(r["phase"] == "stopped" for r in stage.engine.workers()), "everybody is stopped", 120)


def answer(found: dict[str, Contender], blpop: float) -> dict[str, Any]:
    peers = [seen for name, seen in found.items() if name in PEERS]
    best = min(seen.p50 for seen in peers)
    warm, forked = found["muster warm"], found["muster cold, fork"]
    ratios = {
        "warm_p50_vs_best_peer": best / warm.p50,
        "warm_p50_vs_25_blpop": 25 * blpop / warm.p50,
        "cold_fork_p50_vs_best_peer": best / forked.p50,
        "cold_exec_p50_vs_1.3_plain_exec": 1.3
        * found["plain exec, again"].p50
        / found["muster cold, exec"].p50,
    }
    for size, rate in warm.rates.items():
        ratios[f"burst_{size}_warm_vs_best_peer"] = rate / max(seen.rates[size] for seen in peers)
        ratios[f"burst_{size}_cold_fork_vs_best_peer"] = forked.rates[size] / max(
            seen.rates[size] for seen in peers
        )
    figures: dict[str, Any] = {"waiting behind BLPOP p50, ms": round(blpop, 3)}
    for name, seen in found.items():
        figures[f"{name} p50, ms"] = round(seen.p50, 1)
        figures[f"{name} p95, ms"] = round(seen.p95, 1)
        for size, rate in seen.rates.items():
            figures[f"{name} burst of {size}, per s"] = round(rate, 1)
        if seen.lost or seen.doubled:
            figures[f"{name}, lost and doubled"] = f"{seen.lost} and {seen.doubled}"
    ours = [seen for name, seen in found.items() if name.startswith("muster")]
    return {
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "figures": figures,
        # A peer has nobody who starts a worker again that failed: its losses are a figure, not ours.
        "lost": sum(seen.lost for seen in ours),
        "doubled": sum(seen.doubled for seen in ours),
    }


#: What each ratio should be.
GOALS = {
    "warm_p50_vs_best_peer": 8.0,
    "warm_p50_vs_25_blpop": 1.0,
    "cold_fork_p50_vs_best_peer": 5.0,
    "cold_exec_p50_vs_1.3_plain_exec": 1.0,
    "burst_200_warm_vs_best_peer": 15.0,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="ten starts each and bursts of 50")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the answer there as well")
    parser.add_argument("--ray", action="store_true", help="Ray actors too (a large installation)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
        found, blpop = measure(Path(folder), options.quick, options.ray)
    result = answer(found, blpop)
    sizes = list(found["muster warm"].rates)
    print(f"{'':22}{'p50 ms':>9}{'p95 ms':>9}{'lost':>6}" + "".join(f"{f'burst {n}/s':>13}" for n in sizes))
    for seen in sorted(found.values(), key=lambda seen: seen.p50):
        rates = "".join(f"{seen.rates.get(n, 0):13.1f}" if n in seen.rates else f"{'':13}" for n in sizes)
        print(f"{seen.name:22}{seen.p50:9.1f}{seen.p95:9.1f}{seen.lost:6}{rates}")
    print(f"{'waiting behind BLPOP':22}{blpop:9.2f}   (connects, opens no session)")
    for name, ratio in result["ratios"].items():
        goal = GOALS.get(name)
        met = "" if goal is None else f"   goal {goal:g}: {'met' if ratio >= goal else 'MISSED'}"
        print(f"{name:36}{ratio:8.2f}{met}")
    print(f"Muster lost {result['lost']}, doubled {result['doubled']}")
    plot = SCRATCH / "start.svg"
    plot.write_text(bars({seen.name: seen.p50 for seen in found.values()} | {"BLPOP limit": blpop}), "utf-8")
    say(f"the plot is {plot.relative_to(ROOT)}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
