"""A function as Lambda runs it: the unpacked zip, the real runtime client, a local runtime API; and a
proxy before the local AWS endpoint that writes down every call."""

from __future__ import annotations

import http.client
import json
import queue
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import files
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 60

#: What the Lambda runtime has besides the zip: boto3, its dependencies and the runtime client.
RUNTIME_PACKAGES = (
    "awslambdaric",
    "snapshot-restore-py",
    "simplejson",
    "boto3",
    "botocore",
    "s3transfer",
    "jmespath",
    "python-dateutil",
    "six",
    "urllib3",
)


def runtime_folder(folder: Path) -> Path:
    """Links to those packages and to nothing else, so that nothing of the repository can be imported."""
    folder.mkdir()
    for package in RUNTIME_PACKAGES:
        for file in files(package) or ():
            top = str(file).split("/")[0]
            link = folder / top
            if top not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(
                    Path(str(file.locate())).parents[len(file.parts) - 2]
                    if len(file.parts) > 1
                    else file.locate()
                )
    return folder


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Function:
    """A started function. `invoke` returns its answer, or raises with the error it reported."""

    events: queue.Queue[tuple[str, bytes]] = field(default_factory=queue.Queue)
    answers: queue.Queue[tuple[str, Any]] = field(default_factory=queue.Queue)
    log: Path = Path()

    def invoke(self, event: Any) -> Any:
        self.events.put((str(uuid.uuid4()), json.dumps(event).encode()))
        try:
            kind, body = self.answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no answer; the function said:\n{self.log.read_text()}") from None
        if kind != "response":
            raise AssertionError(f"{kind}: {body}\nthe function said:\n{self.log.read_text()}")
        return body


@contextmanager
def function(
    handler: str, task_root: Path, runtime: Path, variables: dict[str, str], log: Path
) -> Iterator[Function]:
    """Run `handler` from the folder `task_root` through awslambdaric until the block ends."""
    running = Function(log=log)

    class RuntimeApi(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            request_id, body = running.events.get()
            self.send_response(200)
            self.send_header("Lambda-Runtime-Aws-Request-Id", request_id)
            self.send_header("Lambda-Runtime-Deadline-Ms", "9999999999999")
            self.send_header("Lambda-Runtime-Invoked-Function-Arn", f"arn:aws:lambda:x:0:function:{handler}")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.flush()
            running.answers.put((self.path.rsplit("/", 1)[1], json.loads(body or b"null")))

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    name = handler.split(".")[1]
    with serving(RuntimeApi) as port, log.open("wb") as out:
        process = subprocess.Popen(
            # -S: no site-packages, so neither the repository nor its packages are importable.
            [sys.executable, "-S", "-P", "-m", "awslambdaric", handler],
            cwd=task_root,
            env=variables
            | {
                "PYTHONPATH": f"{task_root}:{runtime}",
                "LAMBDA_TASK_ROOT": str(task_root),
                "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
                "AWS_LAMBDA_FUNCTION_NAME": name,
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
                "AWS_LAMBDA_LOG_FORMAT": "JSON",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "local",
                "AWS_SECRET_ACCESS_KEY": "local",
                "NO_PROXY": "127.0.0.1,localhost",
            },
            stdout=out,
            stderr=out,
        )
        try:
            yield running
        finally:
            process.kill()
            process.wait()
            # The request that waits for the next event must end before its server can.
            running.events.put(("", b"{}"))


@dataclass(frozen=True)
class Call:
    """One AWS call: the IAM action it needs and what it was done to, as far as the request says."""

    action: str
    subject: str


@dataclass
class Recorder:
    """Forwards to the endpoint and remembers. `refuse` names operations that are answered with a throttle;
    `older_s` makes every task look that much older than it is."""

    upstream: str
    calls: list[Call] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)
    older_s: float = 0.0
    #: The next RunTask is told that this task came of its token before.
    known_task: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


_SERVICES = {
    "AmazonSQS": "sqs",
    "AmazonEC2ContainerServiceV20141113": "ecs",
    "secretsmanager": "secretsmanager",
}


def _call_of(method: str, path: str, target: str, body: bytes) -> tuple[str, Call]:
    """Operation and call, from the protocols of the services the code uses."""
    if target:
        service, operation = target.split(".")
        given = json.loads(body or b"{}")
        subject = given.get("QueueUrl", given.get("SecretId", "")).rsplit("/", 1)[-1]
        # IAM knows no batch actions: the single action covers them.
        return operation, Call(f"{_SERVICES[service]}:{operation.removesuffix('Batch')}", subject)
    parts = path.split("?")[0].strip("/").split("/")
    if parts[1:2] == ["functions"] and parts[-1] == "invocations":
        return "Invoke", Call("lambda:InvokeFunction", parts[2])
    if parts[0] == "schedules" and method == "POST":
        return "CreateSchedule", Call("scheduler:CreateSchedule", "default")
    raise AssertionError(f"a call this proxy does not know: {method} {path}")


def _older(content: bytes, seconds: float) -> bytes:
    if not seconds or b'"tasks"' not in content:
        return content
    answer = json.loads(content)
    for task in answer["tasks"]:
        for moment in ("createdAt", "startedAt"):
            if moment in task:
                task[moment] -= seconds
    return json.dumps(answer).encode()


@contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    recorder = Recorder(upstream)
    host = upstream.removeprefix("http://")

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            target = self.headers.get("X-Amz-Target", "")
            operation, call = _call_of(self.command, self.path, target, body)
            recorder.calls.append(call)
            if operation in recorder.refuse:
                answer = json.dumps({"__type": "ThrottlingException", "message": "Rate exceeded"}).encode()
                self._answer(400, "application/x-amz-json-1.1", answer)
            elif operation == "RunTask" and recorder.known_task:
                told = {"__type": "ConflictException", "resourceIds": [recorder.known_task]}
                recorder.known_task = ""
                self._answer(400, "application/x-amz-json-1.1", json.dumps(told).encode())
            elif operation == "Invoke":
                self._answer(202, "application/json", b"")  # asked for; the other function is not run here
            else:
                self._forward(body)

        def _forward(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(host, timeout=30)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
                connection.request(self.command, self.path, body, headers)
                got = connection.getresponse()
                content = _older(got.read(), recorder.older_s)
                self._answer(got.status, got.getheader("Content-Type", "application/json"), content)
            finally:
                connection.close()

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with serving(Proxy) as port:
        recorder.port = port
        yield recorder
