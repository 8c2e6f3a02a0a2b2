"""The local AWS endpoint: ministack on loopback, in a process that outlives the engine that started it.

It runs in a session of its own, and the next engine adopts it by what `<folder>/aws.json` says. Its messages
and secrets are files in `<folder>/aws/` (`local/aws_process.py`): whether it was stopped or killed, the next
one has them again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from local.valkey import free_port, let_go, port_in_use
from muster.blueprint import QUEUES, Queue
from muster.errors import Refused

log = logging.getLogger(__name__)

REGION = "us-east-1"
ACCOUNT = "000000000000"
SERVICES = ("sqs", "secretsmanager")
#: The module that the endpoint's process runs.
PROCESS = "local.aws_process"

#: How long the endpoint may take to end: 0.1 s idle, 3 s with a long poll open.
STOP_S = 20.0
_POLL_S = 0.02
#: Start times are told by the wall clock, which may be set a little between two readings.
_SAME_START_S = 2.0


class LocalAws:
    """One endpoint per folder. `start` adopts the one that lives, on whichever port it has, or starts one
    on `port` (0 is any free one). `stop` ends it; just ending this process does not."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.port = port
        self.adopted = False
        self._process: psutil.Process | None = None
        self._clients: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The endpoint's process, while there is one."""
        return self._process.pid if self._process else None

    def start(self, timeout: float = 30.0, adopt_timeout: float = 20.0) -> LocalAws:
        """Adopt or start, and return when it answers. One that lives and says nothing for `adopt_timeout`
        is ended and replaced. Raises `Refused` when the port is somebody else's."""
        self.adopted = self._adopt(adopt_timeout)
        if not self.adopted:
            self.port = self.port or self._former_port()
            self._launch(timeout)
        return self

    @property
    def alive(self) -> bool:
        return self._process is not None and _lives(self._process)

    def restart(self) -> None:
        """Start again on the same port after it died: its clients, and everybody's addresses, stay good."""
        let_go(self.port)
        self._launch(30.0)

    def stop(self, timeout: float = STOP_S) -> None:
        """End the endpoint; its queues stay for the next start. Does nothing when it has ended."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        if self._process is not None:
            _end(self._process, timeout)
            self._process = None
        self._record.unlink(missing_ok=True)

    def client(self, service: str) -> Any:
        """A boto3 client of this endpoint, shared by all callers. Short timeouts: it is on this machine."""
        if service not in self._clients:
            import boto3
            from botocore.config import Config

            session = boto3.session.Session(
                aws_access_key_id="local",
                aws_secret_access_key="local",  # noqa: S106 - the endpoint asks for one and checks none
                region_name=REGION,
            )
            config = Config(
                connect_timeout=2,
                read_timeout=10,
                retries={"total_max_attempts": 2, "mode": "standard"},
                max_pool_connections=64,
                proxies={},  # a proxy of the environment must not be asked for loopback
            )
            self._clients[service] = session.client(service, endpoint_url=self.url, config=config)
        return self._clients[service]

    def ensure_queues(self) -> dict[str, str]:
        """Every queue of the blueprint exists with its attributes; their URLs by name. Repeatable."""
        sqs = self.client("sqs")
        urls: dict[str, str] = {}
        for queue in QUEUES:
            kind = {"FifoQueue": "true"} if queue.fifo else {}
            url = sqs.create_queue(QueueName=queue.name, Attributes=kind)["QueueUrl"]
            # Set apart from the creation: an adopted queue may have the numbers of an older blueprint.
            sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes(queue))
            urls[queue.name] = url
        return urls

    @property
    def _record(self) -> Path:
        return self.folder / "aws.json"

    @property
    def _state(self) -> Path:
        return self.folder / "aws"

    def _former_port(self) -> int:
        """Of one that died, so that workers that outlived it find the next one; 0 if it is not to be had."""
        try:
            port = int(json.loads(self._record.read_text(encoding="utf-8"))["port"])
        except (FileNotFoundError, ValueError, KeyError):
            return 0
        return port if let_go(port) else 0

    def _adopt(self, timeout: float) -> bool:
        try:
            told = json.loads(self._record.read_text(encoding="utf-8"))
            process = psutil.Process(told["pid"])
            if abs(process.create_time() - told["started"]) > _SAME_START_S:
                return False
        except (FileNotFoundError, ValueError, KeyError, psutil.NoSuchProcess):
            return False
        if _wait_until_it_answers(process, told["port"], timeout):
            self._process, self.port = process, told["port"]
            return True
        if not _lives(process):
            return False
        log.warning("the endpoint with pid %d does not answer: it is ended and replaced", process.pid)
        _end(process, STOP_S)
        return False

    def _launch(self, timeout: float) -> None:
        port = self.port or free_port()
        if port_in_use(port):
            raise Refused(
                f"port {port} is in use by another program: choose another with --aws-port, 0 for any"
            )
        # Secrets are kept here too.
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        log_file = self.folder / "aws.log"
        with log_file.open("ab") as out:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", PROCESS],
                env=self._environment(port),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        process = psutil.Process(child.pid)
        # Written before it answers: an engine killed now would leave an endpoint that nobody knows.
        _write(self._record, {"pid": child.pid, "started": process.create_time(), "port": port})
        if not _wait_until_it_answers(process, port, timeout):
            _end(process, STOP_S)
            self._record.unlink(missing_ok=True)
            raise RuntimeError(f"the local AWS endpoint did not answer on port {port}; see {log_file}")
        self._process, self.port = process, port

    def _environment(self, port: int) -> dict[str, str]:
        """Only what is named here: a developer's own settings must not change the endpoint."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._state),
            "TMPDIR": str(self._state),
            "BIND_HOST": "127.0.0.1",
            # Not GATEWAY_PORT: that one becomes part of the names under which queues are kept, and a
            # start on another port would not find them. EDGE_PORT only binds.
            "EDGE_PORT": str(port),
            "MINISTACK_REGION": REGION,
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            "SERVICES": ",".join(SERVICES),
            "PERSIST_STATE": "0",  # its own way saves only in an orderly end
            "STATE_DIR": str(self._state),
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
        }


def arn(name: str) -> str:
    """The ARN of a queue at this endpoint."""
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def attributes(queue: Queue) -> dict[str, str]:
    """The blueprint's numbers for a queue in the words of SetQueueAttributes."""
    words = {
        "VisibilityTimeout": str(int(queue.visibility.total_seconds())),
        "MessageRetentionPeriod": str(int(queue.retention.total_seconds())),
    }
    if queue.fifo:
        words["ContentBasedDeduplication"] = str(queue.content_deduplication).lower()
    if queue.dead_letter:
        words["RedrivePolicy"] = json.dumps(
            {"deadLetterTargetArn": arn(queue.dead_letter), "maxReceiveCount": queue.max_receives}
        )
    return words


def _wait_until_it_answers(process: psutil.Process, port: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not _lives(process):
            return False
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _answers(port):
                return True
        time.sleep(_POLL_S)
    return False


def _lives(process: psutil.Process) -> bool:
    """Running, or suspended; one that ended and was not reaped yet does not live."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()


def _end(process: psutil.Process, timeout: float) -> None:
    """SIGTERM, then SIGKILL. psutil checks the start time, so a reused pid is never hit."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # one that is suspended must wake to end
        try:
            process.wait(timeout)
        except psutil.TimeoutExpired:
            log.warning("the endpoint with pid %d ignored SIGTERM: killed", process.pid)
            process.kill()
            process.wait(timeout)


def _write(path: Path, value: dict[str, Any]) -> None:
    """Whole or not at all: a reader never sees half a record."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(value), encoding="utf-8")
    draft.replace(path)
