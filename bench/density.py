"""How many ready workers one machine holds: memory of each, CPU of all, beats on time.

    python -m bench.density [--quick] [--json PATH]

Every worker has its paper broker session open. Memory is the proportional set size (PSS): shared pages count
by their share. CPU is that of the workers alone, over a quiet stretch. A beat is late when the mark is older
than the beat interval; marks are looked at twice a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import redis

from local.driver import EngineProcess, until
from muster import blueprint, keys

#: What a bare process costs, for comparison: the modules, then its PSS.
REFERENCES = {"bare Python": "sys", "with redis": "redis", "with boto3": "redis, boto3"}
MIB = 1024
#: Waiting forked workers. What they share with the fork server counts by its share: of a few, much.
WAITING = 60
GOALS = {
    "exec_idle_pss_vs_30_mib": 1.0,
    "exec_ready_pss_vs_40_mib": 1.0,
    "fork_idle_pss_vs_8_mib": 1.0,
    "fork_ready_pss_vs_8_mib": 1.0,
    "idle_cpu_of_300_vs_quarter_core": 1.0,
    "latest_beat_vs_2_s": 1.0,
}


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def pss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return int(text.partition("\nPss:")[2].split()[0]) / MIB


def reference(modules: str) -> float:
    code = f"import {modules}\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = pss_mib(process.pid)
        process.kill()
    return seen


class Fleet:
    """An engine with a paper broker, and its workers."""

    def __init__(self, folder: Path, launch: str) -> None:
        self.engine = EngineProcess(folder, "--session", "broker", "--pool", "0", "--launch", launch)
        self.engine.start()
        self.valkey: Any = redis.Redis.from_url(self.engine.endpoints["valkey"], decode_responses=True)

    def close(self) -> None:
        self.engine.stop()
        self.engine.end()

    def idle(self, count: int) -> list[int]:
        """The processes of a pool of `count` waiting workers."""
        self.engine.api.put("/v1/pool", json={"target": count}).raise_for_status()
        until(lambda: self.engine.get("/v1/pool")["idle"] == count, f"a pool of {count}", 60)
        return self._workers(lambda env: "MUSTER_USER" not in env)

    def ready(self, users: list[str]) -> list[int]:
        """The processes of these users, once all are ready."""
        for user in users:
            self.engine.command(user, "start")
        until(lambda: len(self.states(users)) == len(users), f"{len(users)} ready workers", 300)
        return [int(state["pid"]) for state in self.states(users)]

    def states(self, users: Iterable[str]) -> list[dict[str, Any]]:
        raw = self.valkey.mget([keys.state(user) for user in users])
        states = [json.loads(text) for text in raw if text]
        return [state for state in states if state["phase"] == "ready"]

    def late_beats(self, users: list[str], seconds: float) -> float:
        """The oldest a mark became beyond the beat interval, in seconds. A missing mark is a lease late."""
        ttl, beat = blueprint.MARK_TTL.total_seconds(), blueprint.MARK_BEAT.total_seconds()
        latest, until_then = 0.0, time.monotonic() + seconds
        while time.monotonic() < until_then:
            pipe = self.valkey.pipeline(transaction=False)
            for user in users:
                pipe.pttl(keys.active(user))
            latest = max(latest, *(ttl - max(0, left) / 1000 - beat for left in pipe.execute()))
            time.sleep(0.5)
        return latest

    def _workers(self, wanted: Any) -> list[int]:
        found = []
        for process in self.engine.processes():
            try:
                env = process.environ()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if env.get("MUSTER_TASK_ID") and wanted(env):
                found.append(process.pid)
        return found


def cpu_seconds(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def measure(folder: Path, quick: bool) -> dict[str, Any]:
    many, some, watched_s = (60, 8, 12.0) if quick else (300, 20, 40.0)
    figures: dict[str, Any] = {}
    for name, modules in REFERENCES.items():
        figures[f"{name}, MiB"] = round(reference(modules), 1)
    say(f"executed workers: {some} waiting, {some} ready")
    fleet = Fleet(folder / "exec", "exec")
    try:
        exec_idle = statistics.median(map(pss_mib, fleet.idle(some)))
        exec_ready = statistics.median(map(pss_mib, fleet.ready([f"e{n}" for n in range(some)])))
    finally:
        fleet.close()
    say(f"forked workers: {WAITING} waiting, {many} ready")
    fleet = Fleet(folder / "fork", "fork")
    try:
        fork_idle = statistics.median(map(pss_mib, fleet.idle(WAITING)))
        fleet.engine.api.put("/v1/pool", json={"target": 0}).raise_for_status()
        users = [f"f{n}" for n in range(many)]
        began = time.monotonic()
        pids = fleet.ready(users)
        say(f"  all ready after {time.monotonic() - began:.0f} s; watching them for {watched_s:.0f} s")
        spent, at = cpu_seconds(pids), time.monotonic()
        latest = fleet.late_beats(users, watched_s)
        share = (cpu_seconds(pids) - spent) / (time.monotonic() - at)
        sizes = [pss_mib(pid) for pid in pids]
        lost = many - len(fleet.states(users))
        doubled = many - len(set(pids))
    finally:
        fleet.close()
    figures |= {
        "executed, waiting, MiB": round(exec_idle, 1),
        "executed, ready, MiB": round(exec_ready, 1),
        "forked, waiting, MiB": round(fork_idle, 1),
        "forked, ready, MiB": round(statistics.median(sizes), 1),
        "forked, ready, largest, MiB": round(max(sizes), 1),
        "ready workers": many,
        "CPU of all, % of a core": round(share * 100, 1),
        "latest beat, s": round(latest, 2),
    }
    ratios = {
        "exec_idle_pss_vs_30_mib": 30 / exec_idle,
        "exec_ready_pss_vs_40_mib": 40 / exec_ready,
        "fork_idle_pss_vs_8_mib": 8 / fork_idle,
        "fork_ready_pss_vs_8_mib": 8 / statistics.median(sizes),
        "idle_cpu_of_300_vs_quarter_core": 0.25 / (share * 300 / many),
        "latest_beat_vs_2_s": 2 / max(latest, 0.01),
    }
    return {
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "figures": figures,
        "lost": lost,
        "doubled": doubled,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="60 ready workers instead of 300")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the answer there as well")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-density-") as folder:
        result = measure(Path(folder), options.quick)
    for name, figure in result["figures"].items():
        print(f"{name:34}{figure:10,}")
    for name, ratio in result["ratios"].items():
        print(f"{name:34}{ratio:10.2f}   {'met' if ratio >= GOALS[name] else 'MISSED'}")
    print(f"lost {result['lost']}, doubled {result['doubled']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
