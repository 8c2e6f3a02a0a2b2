"""Sixteen processes, ten thousand jobs, half of the workers killed: every job done once, none lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from muster.clock import SystemClock
from muster.jobs import Finished, JobStatus, NewJob, WorkerRegistration, WorkerStatus, connect
from muster.jobs.reaper import reap

PROCESSES, JOBS = 16, 10_000
#: Killed with the claims of a turn in their hands, and killed wherever they are.
BY_OWN_HAND, FROM_OUTSIDE = 5, 4
KILLED = BY_OWN_HAND + FROM_OUTSIDE
#: A turn takes about a millisecond: a kill within this time after one may hit any part of another.
SOON_S = 0.01
STALE_S = 2.0
DEADLINE_S = 200.0
_fork = multiprocessing.get_context("fork")


def _work(url: str, batch: int, diary: Path, start, dead, doomed_at: int | None, told) -> None:
    """Claim and hand in until nothing is open; every claim and every accepted result goes into the diary.

    A doomed one is killed at its n-th turn, by its own SIGKILL and with the claims of that turn in its hands:
    from outside that moment cannot be met. One that is killed from outside counts its turns for its killer
    (`told`) and works on until the kill comes. The others leave half of the jobs until all the doomed are
    dead, so that each of them gets its turns.
    """
    jobs = connect(url)
    start.wait()
    turns = claimed = 0
    pool = jobs.work.pool("race")
    log = os.open(diary, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    worker = ""
    finished: list[Finished] = []
    beat = 0.0
    while True:
        if time.monotonic() - beat > STALE_S / 8:
            beat = time.monotonic()
            if not worker or jobs.registration.heartbeat(worker) is WorkerStatus.LOST:
                worker = f"w-{uuid.uuid4().hex}"
                jobs.registration.register(WorkerRegistration(worker, pid=os.getpid(), pool="race"))
            pool.extend(worker, STALE_S)
        if doomed_at is None and told is None and claimed >= JOBS // (2 * PROCESSES) and dead.value < KILLED:
            time.sleep(0.002)
            continue
        turn = pool.turn(worker, finished, batch, STALE_S)
        claimed += len(turn.claimed)
        lines = [f"done {f.id} {f.token}\n" for f, ok in zip(finished, turn.accepted, strict=True) if ok]
        lines += [f"claim {job.id} {job.token}\n" for job in turn.claimed]
        if lines:
            os.write(log, "".join(lines).encode())
        finished = [Finished(job.id, job.token, {"n": job.data}) for job in turn.claimed]
        turns += bool(finished)
        if told is not None:
            told.value = turns
        if turns == doomed_at:
            with dead.get_lock():
                dead.value += 1
            os.kill(os.getpid(), signal.SIGKILL)
        if not finished:
            if told is None and pool.counts().open == 0:
                os._exit(0)
            pool.wait(0.05)


def _kill(worker, told, after_turns: int, delay: float, dead, over: threading.Event) -> None:
    """SIGKILL a moment after a turn: in the middle of a transaction, before its answer, or between two."""
    while told.value < after_turns:
        if over.wait(0.0005):
            return
    time.sleep(delay)
    os.kill(worker.pid, signal.SIGKILL)
    with dead.get_lock():
        dead.value += 1


def _open_and_push(url: str, start) -> None:
    start.wait()
    connect(url).work.pool("race").push(os.getpid())


def test_many_processes_may_open_a_new_file_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/new.db"
    start = _fork.Barrier(8)
    openers = [_fork.Process(target=_open_and_push, args=(url, start)) for _ in range(8)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(DEADLINE_S)
    assert [opener.exitcode for opener in openers] == [0] * 8
    assert connect(url).work.pool("race").size() == 8


@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", ["sqlite", "valkey"])
@pytest.mark.parametrize("batch", [1, 7])
def test_every_job_is_done_exactly_once_while_workers_are_killed(request, tmp_path, backend, batch):
    if backend == "valkey":
        port = request.getfixturevalue("valkey").connection_pool.connection_kwargs["port"]
        url = f"valkey://127.0.0.1:{port}/0"
    else:
        url = f"sqlite:///{tmp_path}/jobs.db"
    jobs = connect(url)
    pool = jobs.work.pool("race")
    pushed = pool.push_many([NewJob(n, max_retries=1000) for n in range(JOBS)])

    chance = random.Random(batch)
    fates = [(n, chance.randint(1, 6)) for n in chance.sample(range(PROCESSES), KILLED)]
    own, outside = dict(fates[:BY_OWN_HAND]), dict(fates[BY_OWN_HAND:])
    start, dead = _fork.Barrier(PROCESSES), _fork.Value("i", 0)
    told = {n: _fork.Value("i", 0, lock=False) for n in outside}
    workers = [
        _fork.Process(
            target=_work, args=(url, batch, tmp_path / f"{n}.diary", start, dead, own.get(n), told.get(n))
        )
        for n in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    over = threading.Event()
    killers = [
        threading.Thread(
            target=_kill, args=(workers[n], told[n], turns, chance.uniform(0.0, SOON_S), dead, over)
        )
        for n, turns in outside.items()
    ]
    for killer in killers:
        killer.start()
    deadline = time.monotonic() + DEADLINE_S
    try:
        while any(worker.is_alive() for worker in workers):
            assert time.monotonic() < deadline, pool.counts()
            reap(jobs, "race", SystemClock(), STALE_S)
            time.sleep(0.02)
    finally:
        over.set()
        for killer in killers:
            killer.join()
        for worker in workers:
            worker.kill()
            worker.join()

    assert [worker.exitcode for worker in workers].count(-signal.SIGKILL) == KILLED
    claims: Counter[tuple[str, str]] = Counter()
    done: Counter[str] = Counter()
    newest: dict[str, int] = {}
    for diary in tmp_path.glob("*.diary"):
        for line in diary.read_text().splitlines():
            what, job_id, token = line.split()
            if what == "claim":
                claims[job_id, token] += 1
                newest[job_id] = max(newest.get(job_id, 0), int(token))
            else:
                done[job_id] += 1
    assert [claim for claim, times in claims.items() if times > 1] == []
    assert [job_id for job_id, times in done.items() if times > 1] == []
    counts = pool.counts()
    assert (counts.done, counts.open, counts.poisoned) == (JOBS, 0, 0)
    kept = pool.list(JobStatus.DONE, limit=JOBS + 1)
    assert sorted(job.id for job in kept) == pushed
    assert all(job.result == {"n": job.data} for job in kept)
    # The claim that counted is the newest one: an older token was dead by then. A killed process may
    # have claimed without a line in its diary, so the record may be ahead of the diaries, never behind.
    assert all(job.token >= newest.get(job.id, 0) for job in kept)
