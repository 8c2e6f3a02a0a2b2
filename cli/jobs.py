"""`muster jobs ...`: job pools from a shell. Data on stdout, words on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from muster.clock import SystemClock
from muster.errors import Refused, TryLater
from muster.jobs import Jobs, JobStatus, NewJob, WorkerFilter, connect
from muster.jobs import service as owner
from muster.jobs.capacity import ProcessLauncher, check, wanted_workers
from muster.jobs.model import FINISHED, LIVE, STALE_AFTER, WorkItem
from muster.jobs.reaper import is_stale, reap
from muster.jobs.triggers import Effects, load, on_work_added

app = typer.Typer(help="Finite work on workers that exist only while there is work.", no_args_is_help=True)
words = Console(stderr=True, highlight=False)

FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE = 1, 2, 3, 4, 5
_POLL_S = 0.2

Url = Annotated[str, typer.Option(envvar="MUSTER_JOBS_URL", help="Where the jobs are.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable fields.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]
Pool = Annotated[str, typer.Argument(help="The pool's name.")]
JobId = Annotated[str, typer.Argument(help="The job's id.")]
WorkerOption = Annotated[list[str], typer.Option(help="An option for launched workers, such as --batch=10.")]
_DEFAULT_URL = "sqlite:///.muster/jobs.db"


@app.command()
def push(
    pool: Pool,
    data: Annotated[list[str] | None, typer.Argument(help="JSON, one job each; '-' reads lines.")] = None,
    type: Annotated[str, typer.Option(help="Names the processor.")] = "echo",
    count: Annotated[int, typer.Option(min=1, help="Push each job this many times.")] = 1,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    delay: Annotated[float, typer.Option(help="Seconds before it may run.")] = 0.0,
    dedup: Annotated[str | None, typer.Option(help="One open job per key.")] = None,
    max_retries: Annotated[int, typer.Option(min=1, help="Attempts before it is poisoned.")] = 3,
    time_limit: Annotated[float | None, typer.Option(help="Seconds an attempt may take.")] = None,
    triggers: Annotated[Path | None, typer.Option(help="A triggers.yml; by default check at once.")] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Push only; launch nobody.")] = False,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until all are finished.")] = False,
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Add jobs and see that somebody works on them."""
    with _mapped(), _connected(url) as jobs:
        new = [
            NewJob(item, type, priority, delay, dedup, max_retries, time_limit)
            for item in _parse(data or ["{}"])
            for _ in range(count)
        ]
        work_added = _quiet if no_check else _work_added(jobs, url, triggers, worker_option)
        ids = owner.enqueue(jobs, pool, new, work_added)
        if not wait:
            _say({"pool": pool, "ids": ids}, "\n".join(ids), as_json)
            return
        ended = _wait(jobs, pool, list(dict.fromkeys(ids)))
        _say({"pool": pool, "jobs": [_dict(job) for job in ended]}, _table(ended), as_json)
        if any(job.status is not JobStatus.DONE for job in ended):
            raise typer.Exit(FAILED)


@app.command()
def ls(
    pool: Annotated[str | None, typer.Argument(help="A pool; none lists the pools.")] = None,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    before: Annotated[str | None, typer.Option(help="The last id of the page before.")] = None,
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List pools, or the jobs of one, newest first."""
    with _mapped(), _connected(url) as jobs:
        if pool is None:
            rows = [_pool(jobs, name) for name in jobs.work.pools()]
            lines = [
                f"{r['pool']:24} pending {r['pending']:6} claimed {r['claimed']:5} done {r['done']:7} "
                f"poisoned {r['poisoned']:5} workers {r['workers']}/{r['max_workers']} pin {r['pin'] or '-'}"
                for r in rows
            ]
            _say(rows, "\n".join(lines), as_json)
            return
        page = jobs.work.pool(pool).list(status, limit=limit, before=before)
        _say([_dict(job) for job in page], _table(page), as_json)


@app.command()
def show(pool: Pool, job_id: JobId, url: Url = _DEFAULT_URL, as_json: Json = False) -> None:
    """Everything about one job."""
    with _mapped(), _connected(url) as jobs:
        job = _dict(owner.find(jobs, pool, job_id))
        _say(job, "\n".join(f"{k:18} {v}" for k, v in job.items() if v is not None), as_json)


@app.command()
def cancel(pool: Pool, job_id: JobId, url: Url = _DEFAULT_URL, as_json: Json = False) -> None:
    """Cancel a waiting job, or ask a running one to stop."""
    with _mapped(), _connected(url) as jobs:
        status = owner.cancel(jobs, pool, job_id)
        _say({"id": job_id, "status": status}, f"{job_id} {status}", as_json)


@app.command()
def resume(
    pool: Pool,
    job_id: JobId,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Continue a cancelled or poisoned job from its checkpoint."""
    with _mapped(), _connected(url) as jobs:
        owner.resume(jobs, pool, job_id, _work_added(jobs, url, None, worker_option))
        _say({"id": job_id, "status": "pending"}, f"{job_id} pending", as_json)


@app.command()
def rerun(
    pool: Pool,
    job_id: JobId,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Do the same work again as a new job, from the beginning."""
    with _mapped(), _connected(url) as jobs:
        new = owner.rerun(jobs, pool, job_id, _work_added(jobs, url, None, worker_option))
        _say({"id": new, "parent": job_id}, new, as_json)


@app.command("check")
def check_pool(
    pool: Pool,
    max_workers: Annotated[int | None, typer.Option(min=0, help="Keep this limit from now on.")] = None,
    stale_after: Annotated[float, typer.Option(help="Seconds of silence.")] = STALE_AFTER.total_seconds(),
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    dry_run: DryRun = False,
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Reap, then launch the workers the pool lacks. Made for cron."""
    with _mapped(), _connected(url) as jobs:
        work, settings = jobs.work.pool(pool), jobs.work.pool(pool).settings()
        if dry_run:
            most = settings.max_workers if max_workers is None else max_workers
            wanted = wanted_workers(work.size(), work.running(), most)
            live = len(jobs.registration.list(WorkerFilter(status=LIVE, pool=pool)))
            found = {"pool": pool, "wanted": wanted, "live": live, "would_launch": max(0, wanted - live)}
            _say(found, f"would launch {found['would_launch']}", as_json)
            return
        if max_workers is not None and max_workers != settings.max_workers:
            owner.limit(jobs, pool, max_workers)
        done = check(jobs, pool, ProcessLauncher(url, tuple(worker_option)), SystemClock(), stale_after)
        launched = done.capacity.launched
        _say(
            {"pool": pool, **asdict(done.reaped), **asdict(done.capacity)},
            f"launched {len(launched)}, lost {len(done.reaped.lost)}, released {done.reaped.released}",
            as_json,
        )
        if done.capacity.failed:
            words.print(f"launch failed: {done.capacity.failed[0]}; the next check tries again")
            raise typer.Exit(FAILED)


@app.command("reap")
def reap_pool(
    pool: Pool,
    stale_after: Annotated[float, typer.Option(help="Seconds of silence.")] = STALE_AFTER.total_seconds(),
    dry_run: DryRun = False,
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Mark stale workers lost and send their jobs back."""
    with _mapped(), _connected(url) as jobs:
        if dry_run:
            now = SystemClock().now()
            found = jobs.registration.list(WorkerFilter(status=LIVE, pool=pool))
            stale = [w.worker_id for w in found if is_stale(w, now, stale_after, stale_after)]
            _say({"pool": pool, "would_lose": stale}, "\n".join(stale), as_json)
            return
        done = reap(jobs, pool, SystemClock(), stale_after)
        _say(
            {"pool": pool, **asdict(done)},
            f"lost {len(done.lost)}, released {done.released}, trimmed {done.trimmed}",
            as_json,
        )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def work(context: typer.Context, pool: Pool, url: Url = _DEFAULT_URL) -> None:
    """Be a worker of the pool, here and now. Options after it go to the worker (--max-jobs 1)."""
    from worker.jobs import main as work_main

    with _mapped():
        raise typer.Exit(work_main(["--pool", pool, "--url", url, *context.args]))


@app.command()
def workers(
    pool: Annotated[str | None, typer.Argument(help="Only this pool's.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Also the ones that are gone.")] = False,
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List workers and what they are doing."""
    with _mapped(), _connected(url) as jobs:
        found = jobs.registration.list(WorkerFilter(status=None if all else LIVE, pool=pool))
        rows = [{**asdict(w), "current_task_id": w.current_task_id} for w in found]
        lines = [f"{w.worker_id:32} {w.status:12} {w.current_task_id or '-'}" for w in found]
        _say(rows, "\n".join(lines), as_json)


@app.command()
def pin(
    pool: Pool,
    image: Annotated[str, typer.Argument(help="An image or task definition; '-' removes the pin.")],
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """New workers use this image or task definition; running ones are never touched."""
    with _mapped(), _connected(url) as jobs:
        pinned = None if image == "-" else image
        owner.pin(jobs, pool, pinned)
        _say({"pool": pool, "pin": pinned}, f"{pool} {pinned or '-'}", as_json)


@app.command()
def poisoned(
    pool: Pool,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Jobs that failed too often, with their last error."""
    with _mapped(), _connected(url) as jobs:
        page = jobs.work.pool(pool).list(JobStatus.POISONED, limit=limit)
        _say([_dict(job) for job in page], _table(page), as_json)


@app.command()
def redrive(
    pool: Pool,
    dry_run: DryRun = False,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    url: Url = _DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send every poisoned job round again."""
    with _mapped(), _connected(url) as jobs:
        if dry_run:
            ids = [job.id for job in jobs.work.pool(pool).list(JobStatus.POISONED, limit=1000)]
        else:
            ids = owner.redrive(jobs, pool, _work_added(jobs, url, None, worker_option))
        _say({"pool": pool, "ids": ids, "dry_run": dry_run}, "\n".join(ids), as_json)


@contextmanager
def _mapped() -> Iterator[None]:
    """The type of an error decides the exit code."""
    try:
        yield
    except owner.NoSuchJob as missing:
        _fail(missing, NOT_FOUND)
    except Refused as refused:
        _fail(refused, CONFLICT)
    except (TryLater, OSError) as away:
        _fail(away, UNREACHABLE)


def _fail(error: Exception, code: int) -> None:
    words.print(str(error))
    raise typer.Exit(code) from error


@contextmanager
def _connected(url: str) -> Iterator[Jobs]:
    yield connect(url)


def _work_added(jobs: Jobs, url: str, triggers: Path | None, options: list[str]) -> owner.WorkAdded:
    def check_now(pool: str) -> None:
        check(jobs, pool, ProcessLauncher(url, tuple(options)), SystemClock(), trim=False)

    return check_now if triggers is None else on_work_added(load(triggers), Effects(check_now, url))


def _quiet(pool: str) -> None:
    words.print(f"nobody was launched; 'muster jobs check {pool}' does it")


def _parse(given: list[str]) -> list[Any]:
    lines = [line for one in given for line in (sys.stdin if one == "-" else [one]) if line.strip()]
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        words.print(f"not JSON: {error}; quote strings inside, for example '\"text\"'")
        raise typer.Exit(USAGE) from error


def _wait(jobs: Jobs, pool: str, ids: list[str]) -> list[WorkItem]:
    work = jobs.work.pool(pool)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), console=words,
    )  # fmt: skip
    with bar:
        task = bar.add_task(f"{len(ids)} jobs", total=float(len(ids)))
        while True:
            seen = [job for job in (work.get(i) for i in ids) if job is not None]
            ended = [job for job in seen if job.status in FINISHED]
            partly = sum(float((job.progress or {}).get("fraction", 0)) for job in seen if job not in ended)
            bar.update(task, completed=len(ended) + partly + len(ids) - len(seen))
            if len(ended) == len(seen):
                return ended
            time.sleep(_POLL_S)


def _pool(jobs: Jobs, name: str) -> dict[str, Any]:
    work = jobs.work.pool(name)
    live = jobs.registration.list(WorkerFilter(status=LIVE, pool=name))
    return {"pool": name, **asdict(work.counts()), "workers": len(live), **asdict(work.settings())}


def _dict(job: WorkItem) -> dict[str, Any]:
    return asdict(job)


def _table(items: list[WorkItem]) -> str:
    lines = []
    for job in items:
        far = 100.0 if job.status is JobStatus.DONE else 100 * float((job.progress or {}).get("fraction", 0))
        error = (job.error or "").partition("\n")[0]
        lines.append(
            f"{job.id} {job.kind:12} {job.status:10} {job.attempts}/{job.max_retries} {far:3.0f} % {error}"
        )
    return "\n".join(lines)


def _say(data: Any, text: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(data))
    elif text:
        typer.echo(text)


if __name__ == "__main__":
    app()
