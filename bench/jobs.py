"""Job pools against their peers, in one run: `python bench/jobs.py [--quick]`.

Peers are installed into a scratch environment; all use the same server, or a file on the same disk.
Drain is measured from inside the jobs: from the first job (the later first one, with two workers) to the
last, so that starting a process costs nobody anything. Lost and doubled are counted job by job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import jobs_peers as peers
from local.valkey import embedded_valkey

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "rq",
    "arq",
    "saq",
    "dramatiq[redis]",
    "huey",
    "taskiq",
    "taskiq-redis",
    "litequeue",
    "persist-queue",
    "flatmachines",
    "hiredis",
]
SLOW = {"rq": 6, "flatmachines": 6}  # these get a sixth of the jobs; rates do not need more
QUIET_S = 15.0


@dataclass
class Contender:
    """One library in one set-up; the figures are the best of all rounds, the errors their sum."""

    name: str
    store: str
    python: Path
    module: str
    environment: dict[str, str] = field(default_factory=dict)
    enqueue: float = 0.0
    drain: dict[int, float] = field(default_factory=dict)
    latency_ms: float = float("inf")
    lost: int = 0
    doubled: int = 0

    @property
    def ours(self) -> bool:
        return self.name.startswith("muster")


class Round:
    """One contender, one set of numbers, in a folder of its own."""

    def __init__(self, contender: Contender, scratch: Path, port: int) -> None:
        self.contender = contender
        self.folder = Path(tempfile.mkdtemp(dir=scratch))
        self.hits = self.folder / "hits"
        db = self.folder / "jobs.db"
        filled = {key: value.format(port=port, db=db) for key, value in contender.environment.items()}
        self.env = {
            **os.environ, "PORT": str(port), "DB": str(db), "HITS": str(self.hits),
            "PYTHONPATH": os.pathsep.join([str(scratch), *([str(ROOT)] if contender.ours else [])]), **filled,
        }  # fmt: skip
        self.command = [str(contender.python), str(scratch / f"{contender.module}.py")]

    def call(self, *words: object) -> str:
        done = subprocess.run(
            [*self.command, *map(str, words)],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"{self.contender.name}: {done.stderr[-2000:]}")
        return done.stdout

    def workers(self, count: int) -> list[subprocess.Popen[bytes]]:
        with (self.folder / "worker.log").open("ab") as log:
            return [
                subprocess.Popen(
                    [*self.command, "work"],
                    env=self.env,
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for _ in range(count)
            ]

    def seen(self) -> list[tuple[int, int, int]]:
        if not self.hits.exists():
            return []
        rows = (line.split() for line in self.hits.read_bytes().splitlines())
        return [(int(n), int(pid), int(at)) for n, pid, at in rows]

    def drain(self, jobs: int, workers: int) -> None:
        """Push, then let the workers loose; rate, lost and doubled go to the contender."""
        self.hits.unlink(missing_ok=True)
        enqueued = jobs / float(self.call("push", 0, jobs).split()[-1])
        processes = self.workers(workers)
        try:
            last, since = 0, time.monotonic()
            while last < jobs and time.monotonic() - since < QUIET_S:
                time.sleep(0.1)
                count = self.hits.read_bytes().count(b"\n") if self.hits.exists() else 0
                last, since = (count, time.monotonic()) if count != last else (last, since)
            time.sleep(0.3)  # a doubled job would show now
        finally:
            stop(processes)
        rows = self.seen()
        firsts = {pid: min(at for _, p, at in rows if p == pid) for pid in {pid for _, pid, _ in rows}}
        begun, ended = max(firsts.values(), default=0), max((at for *_, at in rows), default=0)
        counted = sum(1 for *_, at in rows if at > begun)
        rate = counted / ((ended - begun) / 1e9) if ended > begun else 0.0
        distinct = {n for n, *_ in rows}
        c = self.contender
        c.enqueue = max(c.enqueue, enqueued)
        c.drain[workers] = max(c.drain.get(workers, 0.0), rate)
        c.lost += jobs - len(distinct)
        c.doubled += len(rows) - len(distinct)

    def latency(self, jobs: int) -> None:
        """One job at a time to an idle worker: from before the push to the job's first line."""
        self.hits.unlink(missing_ok=True)
        processes = self.workers(1)
        try:
            self.call("push", 10**6, 10**6 + 1)
            deadline = time.monotonic() + QUIET_S
            while not self.seen() and time.monotonic() < deadline:
                time.sleep(0.05)
            begun = {
                int(n): int(at)
                for n, at in (line.split() for line in self.call("latency", jobs).splitlines())
            }
        finally:
            stop(processes)
        started = {n: at for n, _, at in self.seen() if n in begun}
        if len(started) == jobs:
            p50 = statistics.median((started[n] - begun[n]) / 1e6 for n in begun)
            self.contender.latency_ms = min(self.contender.latency_ms, p50)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, then SIGKILL, to the sessions we started ourselves."""
    for process in processes:
        os.killpg(process.pid, 15)
    for process in processes:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def contenders(scratch: Path, venv: Path) -> list[Contender]:
    (scratch / "bench_hit.py").write_text(peers.HIT)
    found = []
    for store, modules in (("valkey", peers.VALKEY), ("sqlite", peers.SQLITE)):
        for name, body in modules.items():
            module = f"peer_{name.replace('-', '_')}" + ("_sqlite" if store == "sqlite" else "")
            (scratch / f"{module}.py").write_text(peers.module(body))
            where = "sqlite-normal" if name == "litequeue" else store
            found.append(Contender(name, where, venv, module))
    (scratch / "muster_bench.py").write_text(peers.module(peers.OURS))
    urls = {
        "valkey": "valkey://127.0.0.1:{port}/0",
        "sqlite": "sqlite:///{db}",
        "sqlite-normal": "sqlite:///{db}?synchronous=normal",
    }
    for store, url in urls.items():
        for batch in (1, 10):
            name = "muster" if batch == 1 else f"muster x{batch}"
            settings = {"JOBS": url, "BATCH": str(batch)}
            found.append(Contender(name, store, Path(sys.executable), "muster_bench", settings))
    return found


def install(scratch: Path) -> Path:
    uv = Path(sys.executable).parent / "uv"
    venv = scratch / "venv"
    subprocess.run([uv, "venv", "-q", venv], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", venv / "bin/python", *PACKAGES], check=True)
    return venv / "bin/python"


def report(all_of: list[Contender]) -> bool:
    print(
        f"\n{'':28}{'enqueue/s':>11}{'drain 1/s':>11}{'drain 2/s':>11}{'p50 ms':>9}{'lost':>6}{'doubled':>9}"
    )
    for c in all_of:
        drains = "".join(f"{c.drain.get(n, 0):11,.0f}" for n in (1, 2))
        print(
            f"{c.store + ' ' + c.name:28}{c.enqueue:11,.0f}{drains}{c.latency_ms:9.2f}{c.lost:6}{c.doubled:9}"
        )
    met = []
    print()
    for store, one, ten in (("valkey", 2.0, 10.0), ("sqlite", 1.2, 8.0), ("sqlite-normal", 1.2, 8.0)):
        mine = {c.name: c for c in all_of if c.store == store and c.ours}
        others = [c for c in all_of if c.store == store and not c.ours and c.drain.get(1)]
        if not others or not mine:
            continue
        best = max(others, key=lambda c: c.drain[1])
        for name, goal in (("muster", one), ("muster x10", ten)):
            ratio = mine[name].drain[1] / best.drain[1]
            met.append(ratio >= goal)
            verdict = "" if met[-1] else "  NOT MET"
            print(f"{store}: {name} drains {ratio:.1f} x {best.name} (goal {goal:g} x){verdict}")
        quick = min(others, key=lambda c: c.latency_ms)
        ratio = mine["muster"].latency_ms / quick.latency_ms
        met.append(ratio <= 1.0)
        print(f"{store}: p50 {ratio:.2f} x {quick.name}'s (goal at most 1 x){'' if met[-1] else '  NOT MET'}")
    sound = all(c.lost == c.doubled == 0 for c in all_of if c.ours)
    print(f"muster lost and doubled: {'0 and 0' if sound else 'SOME'}")
    return sound and all(met)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs, one round")
    parser.add_argument("--only", help="names, separated by commas, such as taskiq,muster")
    parser.add_argument("--python", type=Path, help="an environment that has the peers already")
    options = parser.parse_args()
    jobs, rounds = (2000, 1) if options.quick else (5000, 3)
    scratch = Path(tempfile.mkdtemp(prefix="bench-jobs-"))
    try:
        all_of = contenders(scratch, options.python or install(scratch))
        if options.only:
            all_of = [c for c in all_of if c.name.split()[0] in options.only.split(",")]
        for number in range(rounds):
            for c in all_of:
                print(f"round {number + 1} of {rounds}: {c.store} {c.name}", file=sys.stderr)
                with embedded_valkey(scratch / "server") as server:
                    count = jobs // SLOW.get(c.name, 1)
                    for workers in (1, 2):
                        Round(c, scratch, server.port).drain(count, workers)
                    Round(c, scratch, server.port).latency(50)
        return 0 if report(all_of) else 1
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
