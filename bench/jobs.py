"""Job pools against their peers, in one run: `python -m bench.jobs [--quick]`.

Peers are installed into an environment of their own, once; all use the same server, or a file on the same
disk. Ours is measured as it is used: `python -m worker jobs`, whose child process claims, runs the processor
and hands in, while the parent watches. Drain is measured from inside the jobs: from the first job (the later
first one, with two workers) to the last, so that starting a process costs nobody anything. Lost and doubled
are counted job by job.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench import jobs_peers as peers  # noqa: E402 - also runs as a file
from local.valkey import embedded_valkey  # noqa: E402

PACKAGES = [
    "rq==2.12.0",
    "arq==0.25.0",
    "saq==0.26.4",
    "dramatiq[redis]==2.2.1",
    "huey==3.5.4",
    "taskiq==0.13.0",
    "taskiq-redis==1.2.4",
    "litequeue==0.9",
    "persist-queue==1.1.0",
    "flatmachines==4.2.1",
    "hiredis==3.5.0",
    "redis==8.1.0",
]
SLOW = {"rq": 6, "flatmachines": 6}  # these get a sixth of the jobs; rates do not need more
#: The quick form measures the fastest peers only, as the whole run found them.
FASTEST = {"huey", "taskiq", "persist-queue", "litequeue"}
#: store: at least this many times the best peer's drain one job at a time, and in tens
GOALS = {"valkey": (2.0, 10.0), "sqlite": (1.2, 8.0), "sqlite-normal": (1.2, 8.0)}
NO_GOAL = {"persist-queue-bare"}  # see jobs_peers.py
QUIET_S = 15.0
LATENCY_JOBS = 50


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

    def drain(self, jobs: int, workers: int, *, latency: bool) -> None:
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
            rows = self.seen()
            if latency:
                self.latency(len(rows))
        finally:
            stop(processes)
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

    def latency(self, before: int) -> None:
        """One job at a time to the now idle worker: from before the push to the job's first line."""
        told = (line.split() for line in self.call("latency", LATENCY_JOBS).splitlines())
        begun = {int(n): int(at) for n, at in told}
        rows = [(n, at) for n, _, at in self.seen()[before:]]
        started = dict(rows)
        self.contender.lost += LATENCY_JOBS - len(started)
        self.contender.doubled += len(rows) - len(started)
        if started:
            p50 = statistics.median((at - begun[n]) / 1e6 for n, at in started.items())
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
    return sorted(found, key=lambda c: list(GOALS).index(c.store))


def install() -> Path:
    """The Python of an environment that has the peers; made once per list of packages."""
    venv = ROOT / "build" / "bench" / "jobs-peers"
    python, ready = venv / "bin" / "python", venv / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if not ready.exists() or ready.read_text() != wanted:
        print("installing the peers", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        ready.write_text(wanted)
    return python


def fdatasync_us(folder: Path) -> float:
    """What the disk takes to make 16 KiB safe, the median of 20: below it no durable turn can be."""
    spent = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(20):
            file.write(bytes(16384))
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            spent.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(spent)


def ratios(all_of: list[Contender]) -> dict[str, tuple[float, float, str]]:
    """Name: (how many times better than the best peer of that store, the goal or 0, that peer)."""
    found = {}
    for store, (one, ten) in GOALS.items():
        mine = {c.name: c for c in all_of if c.store == store and c.ours}
        others = [c for c in all_of if c.store == store and not c.ours and c.name not in NO_GOAL]
        if not others or not mine:
            continue
        name = store.replace("-", "_")
        for workers in sorted(mine["muster"].drain):
            best = max(others, key=lambda c: c.drain.get(workers, 0.0))
            tail = "" if workers == 1 else f"_{workers}_workers"
            for ours, what, goal in (("muster", "single", one), ("muster x10", "tens", ten)):
                goal = goal if workers == 1 else 0.0
                ratio = mine[ours].drain[workers] / best.drain[workers]
                found[f"{name}_{what}{tail}_vs_best_peer"] = (ratio, goal, best.name)
        quick = min(others, key=lambda c: c.latency_ms)
        found[f"{name}_latency_vs_best_peer"] = (
            quick.latency_ms / mine["muster"].latency_ms,
            1.0,
            quick.name,
        )
        first = max(others, key=lambda c: c.enqueue)
        found[f"{name}_enqueue_vs_best_peer"] = (mine["muster"].enqueue / first.enqueue, 0.0, first.name)
    return found


def report(all_of: list[Contender], found: dict[str, tuple[float, float, str]], sync_us: float) -> None:
    print(
        f"\n{'':28}{'enqueue/s':>11}{'drain 1/s':>11}{'drain 2/s':>11}{'p50 ms':>9}{'lost':>6}{'doubled':>9}"
    )
    for c in all_of:
        drains = "".join(f"{c.drain[n]:11,.0f}" if n in c.drain else f"{'-':>11}" for n in (1, 2))
        print(
            f"{c.store + ' ' + c.name:28}{c.enqueue:11,.0f}{drains}{c.latency_ms:9.2f}{c.lost:6}{c.doubled:9}"
        )
    print(f"\none fdatasync of 16 KiB on this disk: {sync_us:,.0f} us (SQLite at FULL does one per turn)")
    print("muster is the whole worker: a parent that watches, a child process that runs the processor")
    for name, (ratio, goal, best) in found.items():
        verdict = f"goal {goal:4g} x  {'met' if ratio >= goal else 'NOT MET'}" if goal else "no goal"
        print(f"{name:42}{ratio:7.2f} x {best:14} {verdict}")


def answer(all_of: list[Contender], found: dict[str, tuple[float, float, str]]) -> dict[str, Any]:
    """What `--json` writes; only our own losses count, the peers' are in the table."""
    figures: dict[str, Any] = {"worker measured": "parent and child process, as launched"}
    for c in all_of:
        for workers, rate in c.drain.items():
            figures[f"{c.store} {c.name}, jobs/s with {workers} worker{'s' * (workers > 1)}"] = round(rate)
        figures[f"{c.store} {c.name}, p50 ms from push to start"] = round(c.latency_ms, 3)
    return {
        "ratios": {name: round(ratio, 3) for name, (ratio, _, _) in found.items()},
        "figures": figures,
        "lost": sum(c.lost for c in all_of if c.ours),
        "doubled": sum(c.doubled for c in all_of if c.ours),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the fastest peers, one worker, one round")
    parser.add_argument("--only", help="names, separated by commas, such as taskiq,muster")
    parser.add_argument("--store", choices=GOALS, help="one store only")
    parser.add_argument("--json", type=Path, help="write the ratios and figures here, too")
    options = parser.parse_args(argv)
    jobs, rounds, crews = (3000, 1, (1,)) if options.quick else (5000, 3, (1, 2))
    scratch = Path(tempfile.mkdtemp(prefix="bench-jobs-"))
    try:
        all_of = contenders(scratch, install())
        if options.quick:
            all_of = [c for c in all_of if c.ours or c.name in FASTEST]
        if options.only:
            all_of = [c for c in all_of if c.name.split()[0] in options.only.split(",")]
        if options.store:
            all_of = [c for c in all_of if c.store == options.store]
        for number in range(rounds):
            for c in all_of:
                print(f"round {number + 1} of {rounds}: {c.store} {c.name}", file=sys.stderr)
                with embedded_valkey(scratch / "server") as server:
                    for workers in crews:
                        count = jobs // SLOW.get(c.name, 1)
                        Round(c, scratch, server.port).drain(count, workers, latency=workers == 1)
        found = ratios(all_of)
        sync_us = fdatasync_us(scratch)
        report(all_of, found, sync_us)
        told = answer(all_of, found)
        told["figures"]["fdatasync, us"] = round(sync_us)
        print(f"muster lost {told['lost']}, doubled {told['doubled']}")
        if options.json:
            options.json.write_text(json.dumps(told, indent=2))
        return 0
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
