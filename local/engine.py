"""The whole system on one machine: the same handlers and core as on AWS, with processes for tasks.

Valkey, the AWS endpoint, the paper broker and the workers are processes that outlive a killed engine and
are adopted by the next one; the API is a child that is started again when it ends; pollers, schedules and
the five functions run here. An orderly stop ends them all.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from botocore.exceptions import BotoCoreError, ClientError

from api.signing import JWKS_FILE, LOCAL, Signer
from lambdas import wiring
from local.checks import PlannedChecks
from local.endpoint import REGION, LocalAws, arn
from local.event_source import EventSource, Handler, LambdaContext
from local.job_pools import ONE_POOL, end_job_workers, job_wiring
from local.lock import FolderLock
from local.paper.service import PaperService, with_accounts
from local.schedules import Schedules
from local.valkey import EmbeddedValkey, free_port
from muster import blueprint, keys, warm_pool
from muster.aws import Keys, aws
from muster.brokers.connect import connect
from muster.budget import Priority
from muster.clients import valkey_client
from muster.clock import SystemClock
from muster.deps import Deps
from muster.errors import MusterError
from muster.functions import job_pool_event
from muster.launchers.forkserver import ForkServer
from muster.launchers.port import TaskStatus, TaskView
from muster.launchers.process import ProcessLauncher
from muster.maintenance import Batch
from muster.orders import OrderDeps
from muster.queues import SqsCommands
from muster.scrub import scrubbed
from muster.settings import Settings
from muster.store import Store
from muster.traces import Spans
from muster.vault import secrets_reader
from worker.broker import BrokerSession

log = logging.getLogger(__name__)

_ACCOUNT = "000000000000"
#: The endpoint asks for some and checks none.
_LOCAL_KEYS = Keys("local", "local")
#: Handler invocations at once. AWS takes 50; two cores have nothing to win from more than a few.
_CONCURRENCY = 8
#: How often the engine looks whether its parts live.
_KEEP_S = 0.5
#: The pool is filled when no command has come for this long, or for the longer of the two at most.
_CALM_S, _CALM_PATIENCE_S = 0.25, 2.0
#: `--session broker`: every user trades at the engine's own paper broker.
BROKER_SESSION = "broker"
_BROKER_CLASS = "worker.broker:BrokerSession"
#: `--launch`: how worker processes come to be.
FORK, EXEC = LAUNCHES = ("fork", "exec")
_PRELOAD = "worker.preload"
_FUNCTIONS = {function.name: function for function in blueprint.FUNCTIONS}


@dataclass(frozen=True, slots=True)
class Options:
    """What `muster up` was asked for. Port 0 is any free one."""

    folder: Path
    api_port: int = 3001
    aws_port: int = 4566
    valkey_port: int = 6390
    valkey_url: str = ""
    pool: int = blueprint.POOL_TARGET
    speed: float = 1.0
    claim_channel: str = "valkey"
    session: str = "idle"
    otlp: str = ""  #: where spans go
    launch: str = FORK
    triggers: Path | None = None  #: a triggers.yml for the job pools


class Engine:
    """One engine per folder. `start` returns when everything answers; `stop` leaves nothing running."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._folder = options.folder.resolve()
        self._lock = FolderLock(self._folder)
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="function")
        self._valkey: EmbeddedValkey | None = None
        self._aws = LocalAws(self._folder, options.aws_port)
        self._session = _BROKER_CLASS if options.session == BROKER_SESSION else options.session
        self._paper = PaperService(self._folder / "paper") if _trades(self._session) else None
        self._api: subprocess.Popen[bytes] | None = None
        self._sources: dict[str, EventSource] = {}
        self._schedules = Schedules(speed=options.speed)

    def start(self) -> dict[str, Any]:
        """Bring everything up, adopting what lives; what `endpoints.json` says."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.acquire()
        # Before the handlers are imported: their logs and metrics belong in a file, not on the terminal.
        sys.stdout = scrubbed((self._folder / "functions.log").open("a", encoding="utf-8", buffering=1))
        (self._folder / "endpoints.json").unlink(missing_ok=True)
        valkey_url = self.options.valkey_url or self._start_valkey()
        paper_url = self._paper.start() if self._paper else ""
        self._aws.start()
        self._queues = self._aws.ensure_queues()
        self._restore_secrets()
        self._settings = self._make_settings(valkey_url)
        self._store = Store(valkey_client(self._settings))
        self._checks = PlannedChecks(
            self._store, self._aws.client("sqs"), self._settings.queue_order_tasks, self.options.speed
        )
        self._launcher = ProcessLauncher(
            self._workers_folder(), env=self._worker_env(), on_exit=self._on_exit, fork=self._fork_server()
        )
        wiring.use(self._wiring())
        self._start_functions()
        endpoints = self._start_api(valkey_url) | ({"paper": paper_url} if paper_url else {})
        threading.Thread(target=self._listen_for_nudges, name="nudges", daemon=True).start()
        threading.Thread(target=self._keep_parts, args=(endpoints,), name="keeper", daemon=True).start()
        self._write_endpoints(endpoints)
        return endpoints

    def stop(self) -> None:
        """Drain the workers, end every child, give the folder back. Desired users stay desired."""
        self._stopping.set()
        (self._folder / "endpoints.json").unlink(missing_ok=True)
        self._end_api()
        for source in self._sources.values():
            source.stop(timeout=5)
        self._schedules.stop(timeout=5)
        self._pool.shutdown(wait=True, cancel_futures=True)
        if hasattr(self, "_launcher"):
            self._drain_workers()
            self._launcher.close()
            end_job_workers(self._workers_folder() / "logs")
        self._aws.stop()
        if self._paper is not None:
            self._paper.stop()
        if self._valkey is not None:
            self._valkey.stop()
        self._lock.release()

    def abandon(self) -> None:
        """`start` was refused. End what this engine started; leave alone what belongs to somebody else."""
        if self._lock.held:
            self.stop()

    def _start_valkey(self) -> str:
        self._valkey = EmbeddedValkey(self._folder / "valkey", self.options.valkey_port, persist=True).start()
        return self._valkey.url

    def _workers_folder(self) -> Path:
        folder = self._folder / "workers"
        folder.mkdir(exist_ok=True)
        return folder

    def _make_settings(self, valkey_url: str) -> Settings:
        urls = self._queues
        return Settings(
            env="local",
            valkey_url=valkey_url,
            queue_worker_control=urls[blueprint.WORKER_CONTROL.name],
            queue_worker_control_dlq=urls[blueprint.WORKER_CONTROL_DLQ.name],
            queue_order_tasks=urls[blueprint.ORDER_TASKS.name],
            queue_order_tasks_dlq=urls[blueprint.ORDER_TASKS_DLQ.name],
            queue_pool_claim=urls[blueprint.POOL_CLAIM.name],
            claim_channel="sqs" if self.options.claim_channel == "sqs" else "valkey",
            launcher="process",
            pool_target=self.options.pool,
            version="local",
            auth_issuer=LOCAL.issuer,
            auth_audience=LOCAL.audience,
            auth_jwks=str(self._folder / JWKS_FILE),
            region=REGION,
            aws_endpoint=self._aws.url,
            otlp_endpoint=self.options.otlp,
            job_triggers=str(self.options.triggers.resolve()) if self.options.triggers else "",
        )

    def _environment(self) -> dict[str, str]:
        """The settings as variables, for our own children. Nothing secret is among them."""
        values = {
            f"MUSTER_{name.upper()}": str(value) for name, value in asdict(self._settings).items() if value
        }
        values = {
            name: value.lower() if value in ("True", "False") else value for name, value in values.items()
        }
        local = {"AWS_ACCESS_KEY_ID": _LOCAL_KEYS.access, "AWS_SECRET_ACCESS_KEY": _LOCAL_KEYS.secret}
        passed = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ
        }
        return passed | values | local | {"AWS_ENDPOINT_URL": self._aws.url, "AWS_REGION": REGION}

    def _worker_env(self) -> dict[str, str]:
        """What a session wants to know of this machine is passed on as it is: MUSTER_SESSION_*."""
        own = {name: value for name, value in os.environ.items() if name.startswith("MUSTER_SESSION_")}
        return self._environment() | own | {"MUSTER_SESSION": self._session}

    def _fork_server(self) -> ForkServer | None:
        """Workers are forked from a process that has imported their code, unless each must be its own."""
        if self.options.launch != FORK:
            return None
        module, _, attribute = self._session.partition(":")
        return ForkServer("worker.boot:main", [_PRELOAD, *([module] if attribute else [])])

    def _wiring(self) -> wiring.Wiring:
        sqs = self._aws.client("sqs")
        deps = Deps(
            store=self._store,
            launcher=self._launcher,
            channel=wiring.claim_channel(self._settings, self._store.client, sqs),
            commands=_NudgingCommands(sqs, self._settings.queue_worker_control, self._wake_worker_control),
            clock=SystemClock(),
            pool=self._settings.pool,
            version=self._settings.version,
            wake_pool=lambda: self._schedules.poke(blueprint.FN_POOL_MANAGER.name),
            spans=Spans(self._settings.otlp_endpoint, "muster-worker-control"),
        )
        self._deps = deps

        def same_for_all(_priority: Priority) -> Deps:
            return deps  # no AWS call is paid for here, so nobody has to wait for anybody

        orders = OrderDeps(
            self._store, secrets_reader(self._aws.client("secretsmanager")), connect, self._checks.plan
        )
        jobs = job_wiring(self._settings.valkey_url, self._workers_folder() / "logs", self._invoke)
        return wiring.Wiring(
            self._settings, sqs, same_for_all, self._invoke_batches, lambda _instance: [], orders, jobs
        )

    def _start_functions(self) -> None:
        from lambdas.maintenance import handler as maintenance
        from lambdas.order_tasks import handler as order_tasks
        from lambdas.pool_manager import handler as pool_manager
        from lambdas.worker_control import handler as worker_control

        control: Handler = worker_control.handler
        if self._paper is not None:
            control = with_accounts(control, self._paper, self._aws.client("secretsmanager"))
            self._schedules.every(self._each_second(), "paper broker", self._paper.keep)
        self._schedules.every(self._each_second(), "fill checks", self._checks.send_due)
        for function, handler in (
            (blueprint.FN_WORKER_CONTROL, control),
            (blueprint.FN_ORDER_TASKS, order_tasks.handler),
        ):
            assert function.queue is not None
            url = self._queues[function.queue.name]
            source = EventSource(
                aws(self._settings, "sqs", keys=_LOCAL_KEYS),
                url,
                function,
                handler,
                concurrency=_CONCURRENCY,
                arn=arn(function.queue.name),
            )
            self._sources[function.queue.name] = source.start()
        for function, run in (
            (blueprint.FN_MAINTENANCE, partial(_run, maintenance.handler, blueprint.FN_MAINTENANCE.name)),
            (blueprint.FN_POOL_MANAGER, partial(self._fill_pool, pool_manager.handler)),
        ):
            assert function.every is not None
            self._schedules.every(function.every, function.name, run)
        if warm_pool.target_of(self._deps, self.options.pool) != self.options.pool:
            warm_pool.set_target(self._deps, self.options.pool)
        self._schedules.start()
        self._schedules.poke(blueprint.FN_POOL_MANAGER.name)
        self._schedules.poke(blueprint.FN_MAINTENANCE.name)

    def _fill_pool(self, handler: Any) -> None:
        """One run launches a portion, to leave calls to others. Here none is paid for: the rest follows. What
        is paid for here are the cores, and a user's start has them first."""
        name = blueprint.FN_POOL_MANAGER.name
        self._sources[blueprint.WORKER_CONTROL.name].calm(_CALM_S, _CALM_PATIENCE_S)
        if _run(handler, name)["launched"] == warm_pool.MOST_LAUNCHES:
            self._schedules.poke(name)

    def _each_second(self) -> timedelta:
        """A beat of this machine's own clock, whatever the speed of the schedules."""
        return timedelta(seconds=self.options.speed)

    def _invoke_batches(self, batches: Sequence[Batch]) -> None:
        from lambdas.maintenance_worker.handler import handler

        for batch in batches:
            event = json.loads(json.dumps({"source": "muster.sweep", "batch": asdict(batch)}))
            self._pool.submit(_logged, handler, event, _context(blueprint.FN_MAINTENANCE_WORKER.name))

    def _invoke(self, function: str, event: dict[str, Any]) -> None:
        """An asynchronous invoke: the caller goes on, the log is told of a failure."""
        handler = import_module(f"lambdas.{function}.handler").handler
        self._pool.submit(_logged, handler, event, _context(function))

    def _on_exit(self, view: TaskView) -> None:
        """A worker process ended: tell maintenance_worker in the words of the ECS event."""
        if self._stopping.is_set():
            return
        from lambdas.maintenance_worker.handler import handler

        detail: dict[str, Any] = {"taskArn": view.task_id, "lastStatus": "STOPPED"}
        if view.stopped_reason:
            detail["stoppedReason"] = view.stopped_reason
        elif view.exit_code is not None:
            detail["containers"] = [{"exitCode": view.exit_code}]
        event = {"detail-type": blueprint.TASK_STOPPED.detail_type, "source": "aws.ecs", "detail": detail}
        try:
            self._pool.submit(_logged, handler, event, _context(blueprint.FN_MAINTENANCE_WORKER.name))
        except RuntimeError:
            log.info("%s ended while the engine stops; the next engine sees it", view.task_id)

    def _wake_worker_control(self) -> None:
        if source := self._sources.get(blueprint.WORKER_CONTROL.name):
            source.wake()

    def _listen_for_nudges(self) -> None:
        """Look at a queue at once when the API says that it has sent something there."""
        client = valkey_client(self._settings, blocking_s=60)
        while not self._stopping.is_set():
            try:
                listener = client.pubsub(ignore_subscribe_messages=True)
                listener.subscribe(keys.NUDGE)
                listener.get_message(timeout=5)  # the server's word that it is so
                # What was said while nobody listened is not repeated.
                for source in self._sources.values():
                    source.wake()
                self._schedules.poke(blueprint.FN_POOL_MANAGER.name)
                while not self._stopping.is_set():
                    message = listener.get_message(timeout=30)
                    name = message["data"] if message else ""
                    if name in self._sources:
                        self._sources[name].wake()
                    elif name == blueprint.FN_POOL_MANAGER.name:
                        self._schedules.poke(name)
                    elif name.startswith(ONE_POOL):
                        event = job_pool_event(name.removeprefix(ONE_POOL))
                        self._invoke(blueprint.FN_POOL_MANAGER.name, event)
            except Exception as away:  # noqa: BLE001 - a nudge is only a hint; the long poll finds the message
                if not self._stopping.wait(1):
                    log.warning("nudges were away: %s", away)

    def _start_api(self, valkey_url: str) -> dict[str, Any]:
        port = self.options.api_port or free_port()
        Signer.make(self._folder)
        endpoints: dict[str, Any] = {
            "api": f"http://127.0.0.1:{port}",
            "aws": self._aws.url,
            "valkey": valkey_url,
            "queues": self._queues,
            "pid": os.getpid(),
        }
        self._spawn_api(port)
        self._wait_for_api(endpoints["api"])
        return endpoints

    def _spawn_api(self, port: int) -> None:
        command = [sys.executable, "-m", "local.api_process", "--port", str(port)]
        command += ["--logs", str(self._workers_folder() / "logs")]
        with (self._folder / "api.log").open("ab") as out:
            self._api = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.PIPE, stdout=out, stderr=out
            )

    def _wait_for_api(self, url: str, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                with urlopen(f"{url}/readyz", timeout=2) as answer:  # noqa: S310 - our own loopback address
                    if answer.status == 200:
                        return
            except (URLError, OSError):
                if self._api is not None and self._api.poll() is not None:
                    raise RuntimeError(f"the API did not start; see {self._folder / 'api.log'}") from None
            if time.monotonic() > deadline:
                raise RuntimeError(f"the API does not answer; see {self._folder / 'api.log'}")
            time.sleep(0.05)

    def _keep_parts(self, endpoints: dict[str, Any]) -> None:
        """Start again what ends: the API, Valkey (from its file) and the AWS endpoint, on their old ports."""
        api_port = int(endpoints["api"].rsplit(":", 1)[1])
        while not self._stopping.wait(_KEEP_S):
            try:
                if self._api is not None and self._api.poll() is not None:
                    log.warning("the API ended with %s; starting it again", self._api.returncode)
                    self._spawn_api(api_port)
                if self._valkey is not None and not self._valkey.alive:
                    log.warning("Valkey ended; starting it again from its file")
                    self._valkey.start()
                self._launcher.keep()
                if not self._aws.alive:
                    log.warning("the AWS endpoint ended; starting it again with what was queued")
                    self._aws.restart()
                    self._restore_secrets()
                    self._aws.ensure_queues()
            except (MusterError, RuntimeError, OSError, BotoCoreError, ClientError) as failed:
                log.warning("a part could not be started again (%s); trying again", failed)

    def _restore_secrets(self) -> None:
        """The paper broker may have another address since the endpoint was told."""
        if self._paper is not None:
            self._paper.restore(self._aws.client("secretsmanager"))

    def _end_api(self) -> None:
        if self._api is not None and self._api.poll() is None:
            self._api.send_signal(signal.SIGTERM)
            try:
                self._api.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._api.kill()
                self._api.wait()

    def _drain_workers(self) -> None:
        living = list(self._launcher.tasks())
        for task_id in living:
            self._launcher.stop(task_id, "the engine stops")
        deadline = time.monotonic() + blueprint.DRAIN_GRACE.total_seconds() + 5
        while time.monotonic() < deadline:
            views = self._launcher.describe(living).values()
            if all(view.status in (TaskStatus.STOPPED, TaskStatus.MISSING) for view in views):
                return
            time.sleep(0.02)
        log.warning("some workers did not end in time; they were killed")

    def _write_endpoints(self, endpoints: dict[str, Any]) -> None:
        """Whole or not at all, and only now: whoever reads it may use everything in it."""
        draft = self._folder / "endpoints.tmp"
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(endpoints, indent=2), encoding="utf-8")
        draft.replace(self._folder / "endpoints.json")


class _NudgingCommands(SqsCommands):
    """Commands of maintenance wake the poller too: it is in this very process."""

    def __init__(self, sqs: Any, queue_url: str, wake: Any) -> None:
        super().__init__(sqs, queue_url)
        self._wake = wake

    def send(self, commands: Any) -> None:
        super().send(commands)
        if commands:
            self._wake()


def _trades(session: str) -> bool:
    """Whether a session needs a broker, and so the engine's own."""
    module, _, attribute = session.partition(":")
    return bool(attribute) and issubclass(getattr(import_module(module), attribute), BrokerSession)


def _context(function: str) -> LambdaContext:
    return LambdaContext(_FUNCTIONS[function], REGION, _ACCOUNT)


def _run(handler: Any, function: str) -> dict[str, Any]:
    answer: dict[str, Any] = handler({}, _context(function))
    return answer


def _logged(handler: Any, event: dict[str, Any], context: LambdaContext) -> None:
    """An asynchronous invoke has no caller to tell: the log is told instead."""
    try:
        handler(event, context)
    except MusterError as error:
        log.warning("%s: %s", context.function_name, error)
    except Exception:
        log.exception("%s failed; the next sweep makes it good", context.function_name)
