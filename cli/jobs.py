"""`muster jobs ...`: job pools by the engine's API or, with `--url`, on a backend without an engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.session import Cli, Code, Failure, Folder, command
from muster.jobs.model import FINISHED, STALE_AFTER, JobStatus

app = typer.Typer(help="Finite work on workers that exist only while there is work.", no_args_is_help=True)

_POLL_S = 0.2
_STALE_S = STALE_AFTER.total_seconds()
_PAGE = 500
#: One request carries at most this much: the API's door takes no body over 64 KiB.
_BODY_CHARS = 48_000
_BATCH = 1000

Url = Annotated[
    str,
    typer.Option(
        envvar="MUSTER_JOBS_URL",
        help="A backend without an engine, such as sqlite:///.muster/jobs.db; by default ask the API.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]
Pool = Annotated[str, typer.Argument(help="The pool's name.")]
JobId = Annotated[str, typer.Argument(help="The job's id.")]
Limit = Annotated[int, typer.Option(min=1, max=1000)]
WorkerOption = Annotated[
    list[str], typer.Option(help="With --url: an option for launched workers, such as --batch=10.")
]
StaleAfter = Annotated[float, typer.Option(min=0, help="Seconds of silence.")]


@app.command()
@command
def push(
    cli: Cli,
    pool: Pool,
    data: Annotated[list[str] | None, typer.Argument(help="JSON, one job each; '-' reads lines.")] = None,
    type: Annotated[str, typer.Option(help="Names the processor.")] = "echo",
    count: Annotated[int, typer.Option(min=1, help="Push each job this many times.")] = 1,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    delay: Annotated[float, typer.Option(help="Seconds before it may run.")] = 0.0,
    dedup: Annotated[str | None, typer.Option(help="One open job per key.")] = None,
    max_retries: Annotated[int, typer.Option(min=1, help="Attempts before it is poisoned.")] = 3,
    time_limit: Annotated[float | None, typer.Option(help="Seconds an attempt may take.")] = None,
    triggers: Annotated[
        Path | None,
        typer.Option(help="With --url: a triggers.yml; by default check at once. An engine has its own."),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Push only; launch nobody.")] = False,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until all are finished.")] = False,
    url: Url = "",
) -> None:
    """Add jobs and see that somebody works on them.

    Example: muster jobs push echo-pool '{"hello": 1}' --wait
    """
    source = _source(cli, url, worker_option, triggers)
    about = {"type": type, "priority": priority, "delay": delay, "max_retries": max_retries}
    about |= {"dedup": dedup} if dedup is not None else {}
    about |= {"time_limit": time_limit} if time_limit is not None else {}
    new = [{"data": item, **about} for item in _parse(data or ["{}"]) for _ in range(count)]
    ids: list[str] = []
    for jobs in _batches(new):
        answer = source.call(
            "POST", f"/v1/pools/{pool}/jobs", json={"jobs": jobs}, params={"check": not no_check}
        )
        ids += answer["ids"]
    if no_check:
        cli.words.print(f"nobody was launched; 'muster jobs check {pool}' does it")
    if not wait:
        _show(cli, {"pool": pool, "ids": ids}, "\n".join(ids))
        return
    ended = _wait(source, pool, set(ids))
    _show(cli, {"pool": pool, "jobs": ended}, _table(ended))
    if any(job["status"] != JobStatus.DONE for job in ended):
        raise typer.Exit(Code.FAILED)


@app.command()
@command
def ls(
    cli: Cli,
    pool: Annotated[str | None, typer.Argument(help="A pool; none lists the pools.")] = None,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option(help="The last id of the page before.")] = None,
    url: Url = "",
) -> None:
    """List pools, or the jobs of one, newest first.

    Example: muster jobs ls backtests --status pending
    """
    source = _source(cli, url)
    if pool is None:
        rows = source.call("GET", "/v1/pools")
        lines = [
            f"{r['pool']:24} pending {r['pending']:6} claimed {r['claimed']:5} done {r['done']:7} "
            f"poisoned {r['poisoned']:5} workers {r['workers']}/{r['max_workers']} pin {r['pin'] or '-'}"
            for r in rows
        ]
        _show(cli, rows, "\n".join(lines))
        return
    page = list(_pages(source, pool, limit, before, status))
    _show(cli, page, _table(page))


@app.command()
@command
def show(cli: Cli, pool: Pool, job_id: JobId, url: Url = "") -> None:
    """Everything about one job.

    Example: muster jobs show backtests 1792843200000000
    """
    job = _source(cli, url).call("GET", f"/v1/pools/{pool}/jobs/{job_id}")
    _show(cli, job, "\n".join(f"{k:18} {v}" for k, v in job.items() if v is not None))


@app.command()
@command
def cancel(cli: Cli, pool: Pool, job_id: JobId, url: Url = "") -> None:
    """Cancel a waiting job, or ask a running one to stop.

    Example: muster jobs cancel backtests 1792843200000000
    """
    answer = _source(cli, url).call("POST", f"/v1/pools/{pool}/jobs/{job_id}/cancel")
    _show(cli, answer, f"{job_id} {answer['status']}")


@app.command()
@command
def resume(
    cli: Cli,
    pool: Pool,
    job_id: JobId,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    url: Url = "",
) -> None:
    """Continue a cancelled or poisoned job from its checkpoint.

    Example: muster jobs resume backtests 1792843200000000
    """
    answer = _source(cli, url, worker_option).call("POST", f"/v1/pools/{pool}/jobs/{job_id}/resume")
    _show(cli, answer, f"{job_id} {answer['status']}")


@app.command()
@command
def rerun(
    cli: Cli,
    pool: Pool,
    job_id: JobId,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    url: Url = "",
) -> None:
    """Do the same work again as a new job, from the beginning.

    Example: muster jobs rerun backtests 1792843200000000
    """
    answer = _source(cli, url, worker_option).call("POST", f"/v1/pools/{pool}/jobs/{job_id}/rerun")
    _show(cli, answer, answer["id"])


@app.command()
@command
def check(
    cli: Cli,
    pool: Pool,
    max_workers: Annotated[int | None, typer.Option(min=0, help="Keep this limit from now on.")] = None,
    stale_after: StaleAfter = _STALE_S,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    dry_run: DryRun = False,
    url: Url = "",
) -> None:
    """Reap, then launch the workers the pool lacks. Made for cron.

    Example: muster jobs check backtests --max-workers 8
    """
    source = _source(cli, url, worker_option)
    if max_workers is not None and not dry_run:
        source.call("PUT", f"/v1/pools/{pool}/limit", json={"max_workers": max_workers})
    asked = {"stale_after": stale_after, "dry_run": dry_run}
    done = source.call("POST", f"/v1/pools/{pool}/check", params=asked)
    if dry_run:
        _show(cli, done, f"would launch {done['would_launch']}")
        return
    launched = "more workers were asked for" if done["asked"] else f"launched {len(done['launched'])}"
    _show(cli, done, f"{launched}, lost {len(done['lost'])}, released {done['released']}")
    if done["failed"]:
        raise Failure(Code.FAILED, f"launch failed: {done['failed'][0]}; the next check tries again")


@app.command()
@command
def reap(
    cli: Cli,
    pool: Pool,
    stale_after: StaleAfter = _STALE_S,
    dry_run: DryRun = False,
    url: Url = "",
) -> None:
    """Mark stale workers lost and send their jobs back.

    Example: muster jobs reap backtests --dry-run
    """
    asked = {"stale_after": stale_after, "dry_run": dry_run}
    done = _source(cli, url).call("POST", f"/v1/pools/{pool}/reap", params=asked)
    if dry_run:
        _show(cli, done, "\n".join(done["would_lose"]))
    else:
        lost, released, trimmed = len(done["lost"]), done["released"], done["trimmed"]
        _show(cli, done, f"lost {lost}, released {released}, trimmed {trimmed}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def work(context: typer.Context, pool: Pool, url: Url = "", folder: Folder = Path(".muster")) -> None:
    """Be a worker of the pool, here and now. Options after it go to the worker (--max-jobs 1).

    A worker talks to the backend itself: the one of --url, else the engine's of this folder.

    Example: muster jobs work backtests --url sqlite:///.muster/jobs.db
    """
    from worker.jobs import main as work_main

    cli = Cli("", "", folder, False)
    own = str(cli.endpoints.get("valkey", "")).replace("redis", "valkey", 1)
    if not (url or own):
        cli.words.print("no backend: start 'muster up', or name one with --url sqlite:///.muster/jobs.db")
        raise typer.Exit(Code.UNREACHABLE)
    raise typer.Exit(work_main(["--pool", pool, "--url", url or own, *context.args]))


@app.command()
@command
def workers(
    cli: Cli,
    pool: Pool,
    all: Annotated[bool, typer.Option("--all", help="Also the ones that are gone.")] = False,
    url: Url = "",
) -> None:
    """List workers and what they are doing.

    Example: muster jobs workers backtests --all
    """
    rows = _source(cli, url).call("GET", f"/v1/pools/{pool}/workers", params={"gone": all})
    lines = [f"{w['worker_id']:32} {w['status']:12} {w['current_task_id'] or '-'}" for w in rows]
    _show(cli, rows, "\n".join(lines))


@app.command()
@command
def pin(
    cli: Cli,
    pool: Pool,
    image: Annotated[
        str,
        typer.Argument(
            help="An image or task definition; on one machine a virtual environment. '-' removes the pin."
        ),
    ],
    url: Url = "",
) -> None:
    """New workers are started from this; running ones are never touched.

    Example: muster jobs pin backtests prod-job-worker:42
    """
    body = {"image": None if image == "-" else image}
    answer = _source(cli, url).call("PUT", f"/v1/pools/{pool}/pin", json=body)
    _show(cli, answer, f"{pool} {answer['pin'] or '-'}")


@app.command()
@command
def poisoned(cli: Cli, pool: Pool, limit: Limit = 50, url: Url = "") -> None:
    """Jobs that failed too often, with their last error.

    Example: muster jobs poisoned backtests
    """
    page = list(_pages(_source(cli, url), pool, limit, None, JobStatus.POISONED))
    _show(cli, page, _table(page))


@app.command()
@command
def redrive(
    cli: Cli,
    pool: Pool,
    dry_run: DryRun = False,
    worker_option: WorkerOption = [],  # noqa: B006 - Typer copies it
    url: Url = "",
) -> None:
    """Send every poisoned job round again.

    Example: muster jobs redrive backtests --dry-run
    """
    source = _source(cli, url, worker_option)
    if dry_run:
        ids = [job["id"] for job in _pages(source, pool, None, None, JobStatus.POISONED)]
    else:
        ids = source.call("POST", f"/v1/pools/{pool}/redrive")["ids"]
    _show(cli, {"pool": pool, "ids": ids, "dry_run": dry_run}, "\n".join(ids))


@app.command()
@command
def triggers(
    cli: Cli,
    file: Annotated[Path, typer.Argument(help="A triggers.yml.")],
    url: Url = "",
) -> None:
    """Check a file of triggers and print the lines that cron needs.

    Lines on stdout, the rest on stderr. Where 'muster' is not on cron's PATH, set PATH in the crontab.

    Example: muster jobs triggers examples/triggers.yml --url sqlite:////srv/jobs.db
    """
    from cli.jobs_triggers import read, rows_of

    rows = rows_of(read(file), cli, url)
    for row in rows:
        when = "by cron" if row["cron"] else f"on {row['on']}"
        about = f"{row['name']:20} {row['type']:10} {row['pool'] or 'every pool'}, {when}"
        cli.words.print(about, markup=False)
    _show(cli, rows, "\n".join(row["cron"] for row in rows if row["cron"]))


def _source(cli: Cli, url: str, worker_options: list[str] | None = None, triggers: Path | None = None) -> Cli:
    """Who is asked: the engine's API, or the same routes on a backend, in this process."""
    if not url:
        if worker_options:
            raise Failure(Code.USAGE, "--worker-option needs --url: the engine launches its own way")
        if triggers:
            raise Failure(
                Code.USAGE,
                f"--triggers needs --url: an engine has its own, 'muster up --triggers {triggers}'",
            )
        return cli
    from cli.jobs_here import Here

    options = tuple(worker_options or ())
    found = None
    if triggers:
        from cli.jobs_triggers import read

        found = read(triggers)
    return Here(cli.api_url, cli.token, cli.folder, cli.as_json, url, options, found)


def _parse(given: list[str]) -> list[Any]:
    lines = [line for one in given for line in (sys.stdin if one == "-" else [one]) if line.strip()]
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        text = f"not JSON: {error}; quote strings inside, for example '\"text\"'"
        raise Failure(Code.USAGE, text) from error


def _batches(new: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """As many jobs at a time as one request may carry."""
    batch: list[dict[str, Any]] = []
    size = 0
    for job in new:
        chars = len(json.dumps(job)) + 2
        if batch and (size + chars > _BODY_CHARS or len(batch) == _BATCH):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += chars
    yield batch


def _pages(
    source: Cli, pool: str, limit: int | None, before: str | None, status: JobStatus | None
) -> Iterator[dict[str, Any]]:
    """Jobs, newest first, as many pages as it takes."""
    given = 0
    while limit is None or given < limit:
        asked: dict[str, Any] = {"limit": min(_PAGE, _PAGE if limit is None else limit - given)}
        asked |= {"before": before} if before else {}
        asked |= {"status": status.value} if status else {}
        page = source.call("GET", f"/v1/pools/{pool}/jobs", params=asked)
        yield from page["jobs"]
        given += len(page["jobs"])
        before = page["next"]
        if before is None:
            return


def _wait(source: Cli, pool: str, ids: set[str]) -> list[dict[str, Any]]:
    """Until all are finished; a job that is not kept any more counts as one."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), console=source.words,
    )  # fmt: skip
    ended: dict[str, dict[str, Any]] = {}
    with bar:
        task = bar.add_task(f"{len(ids)} jobs", total=float(len(ids)))
        left = set(ids)
        while left:
            seen = {}
            for job in _pages(source, pool, None, str(int(max(left, key=int)) + 1), None):
                if int(job["id"]) < min(map(int, left)):
                    break
                seen[job["id"]] = job
            ended |= {i: seen[i] for i in left if i in seen and seen[i]["status"] in FINISHED}
            left = {i for i in left if i in seen} - set(ended)
            partly = sum(_fraction(seen[i]) for i in left)
            bar.update(task, completed=len(ids) - len(left) + partly)
            if left:
                time.sleep(_POLL_S)
    return [ended[i] for i in sorted(ended, key=int)]


def _fraction(job: dict[str, Any]) -> float:
    return float((job["progress"] or {}).get("fraction", 0))


def _table(items: list[dict[str, Any]]) -> str:
    lines = []
    for job in items:
        far = 100.0 if job["status"] == JobStatus.DONE else 100 * _fraction(job)
        error = (job["error"] or "").partition("\n")[0]
        tries = f"{job['attempts']}/{job['max_retries']}"
        lines.append(f"{job['id']} {job['kind']:12} {job['status']:10} {tries} {far:3.0f} % {error}")
    return "\n".join(lines)


def _show(cli: Cli, data: Any, text: str) -> None:
    """Lines as they are: ids and states are cut out of them by other programs."""
    if cli.as_json:
        typer.echo(json.dumps(data))
    elif text:
        typer.echo(text)


if __name__ == "__main__":
    app()
