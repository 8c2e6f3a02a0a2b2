"""Status reads of one API process against a bare FastAPI route, in one run: `python -m bench.api [--quick]`.

Both are served by uvicorn in a process of their own, with the same server settings, and asked by the same
load generator in a third, over the loopback, in turns. Ours does all it does in a deployment: it verifies who
asks (each of 1,000 users with its own token), counts that bearer's limit, reads the state from a real Valkey,
checks whose it is, and answers with every header. The bare one answers a constant to anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

USERS = 1_000
CONNECTIONS = 32
#: The goal of one process, requests per second.
GOAL = 1_500.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds of two seconds")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the answer here, too")
    parser.add_argument("--serve", choices=["ours", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--load", choices=["ours", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    words = parser.parse_args(argv)
    if words.serve:
        _serve(words.serve, words.folder, words.port)
        return 0
    if words.load:
        print(json.dumps(asyncio.run(_load(words.load, words.folder, words.port, words.seconds))))
        return 0
    rounds, seconds = (3, 2.0) if words.quick else (5, 8.0)
    answer = _measure(rounds, seconds)
    print(json.dumps(answer, indent=2))
    if words.json:
        words.json.write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _measure(rounds: int, seconds: float) -> dict[str, Any]:
    from local.valkey import embedded_valkey

    with tempfile.TemporaryDirectory(prefix="bench-api-") as made, ExitStack() as stack:
        folder = Path(made)
        valkey = stack.enter_context(embedded_valkey(folder / "valkey"))
        _populate(valkey, folder)
        servers = {name: stack.enter_context(_served(name, folder)) for name in ("bare", "ours")}
        seen: dict[str, list[dict[str, Any]]] = {"bare": [], "ours": []}
        for number in range(rounds + 1):
            for name, (port, pid) in servers.items():
                before = _cpu_s(pid)
                done = _ask(name, folder, port, seconds)
                done["cpu_us"] = (_cpu_s(pid) - before) / done["answers"] * 1e6
                if number:  # the first round warms both
                    seen[name].append(done)
                    print(f"round {number}: {name} {done['per_second']:.0f} requests/s", file=sys.stderr)
    rate = {name: statistics.median(one["per_second"] for one in found) for name, found in seen.items()}
    cpu = {name: statistics.median(one["cpu_us"] for one in found) for name, found in seen.items()}
    ratios = [
        ours["per_second"] / bare["per_second"] for ours, bare in zip(seen["ours"], seen["bare"], strict=True)
    ]
    return {
        "ratios": {
            "status_reads_vs_bare_route": statistics.median(ratios),
            "status_reads_vs_goal": rate["ours"] / GOAL,
            # The same question, asked of the process's own clock: other work on the machine does not count.
            "status_reads_vs_bare_route_by_cpu": cpu["bare"] / cpu["ours"],
        },
        "figures": {
            "status reads, requests/s": round(rate["ours"]),
            "bare FastAPI route, requests/s": round(rate["bare"]),
            "status read, CPU per request, µs": round(cpu["ours"]),
            "bare route, CPU per request, µs": round(cpu["bare"]),
            "status read p50, ms": round(statistics.median(one["p50_ms"] for one in seen["ours"]), 2),
            "status read p99, ms": round(statistics.median(one["p99_ms"] for one in seen["ours"]), 2),
            "users present": USERS,
            "connections": CONNECTIONS,
        },
        "lost": sum(one["wrong"] for found in seen.values() for one in found),
        "doubled": 0,
    }


def _populate(valkey: Any, folder: Path) -> None:
    """A thousand ready workers, and a token for each of their users."""
    from api.auth import Role
    from api.signing import Signer
    from muster import keys, steps
    from muster.model import Assignment, Cause, Via
    from muster.store import Store

    store = Store(valkey.client())
    signer = Signer.make(folder)
    users = [f"u{number:04}" for number in range(USERS)]
    begun = store.run(
        *(steps.begin_start(user, Cause.START, 1_000, f"c-{user}", seen_epoch=0) for user in users)
    )
    store.run(*(steps.index_add(user) for user in users))
    for user, one in zip(users, begun, strict=True):
        given = Assignment(user, one.epoch, Via.COLD, Cause.START, one.issued_at_ms, one.command_id)
        store.run(
            steps.take_mark(given, f"w-{user}", f"t-{user}", "v1"),
            steps.beat_mark(given, f"w-{user}", f"t-{user}", "v1", '{"pid":4711}', ready=True),
        )
    for user in users:  # nobody beats here: the marks must outlive the run
        store.client.persist(keys.active(user))
        store.client.persist(keys.state(user))
    tokens = {user: signer.token(Role.USER, user, timedelta(hours=2)) for user in users}
    (folder / "tokens.json").write_text(json.dumps(tokens), encoding="utf-8")
    (folder / "valkey.url").write_text(valkey.url, encoding="utf-8")


def _serve(name: str, folder: Path, port: int) -> None:
    import uvicorn
    from fastapi import FastAPI

    if name == "bare":
        app = FastAPI()

        @app.get("/bare")
        async def bare() -> dict[str, str]:
            return {"status": "ok"}

    else:
        from api.app import create_app
        from api.fleet import Fleet
        from api.signing import JWKS_FILE, LOCAL
        from api.tokens import Tokens
        from muster.clients import aws_client, valkey_client
        from muster.settings import Settings
        from muster.store import Store

        settings = Settings(
            valkey_url=(folder / "valkey.url").read_text(encoding="utf-8"),
            auth_issuer=LOCAL.issuer,
            auth_audience=LOCAL.audience,
            auth_jwks=str(folder / JWKS_FILE),
        )
        # Reads ask no queue; the client is there because a fleet has one.
        fleet = Fleet(Store(valkey_client(settings)), aws_client(settings, "sqs"), settings)
        app = create_app(fleet, fleet.together, Tokens.of(settings))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


@contextmanager
def _served(name: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Its port and its process."""
    from local.valkey import free_port

    port = free_port()
    process = subprocess.Popen([*_OURSELVES, "--serve", name, "--folder", str(folder), "--port", str(port)])
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the {name} server did not start") from None
                time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


_OURSELVES = (sys.executable, "-m", "bench.api")


def _cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def _ask(name: str, folder: Path, port: int, seconds: float) -> dict[str, Any]:
    words = ["--load", name, "--folder", str(folder), "--port", str(port), "--seconds", str(seconds)]
    done = subprocess.run([*_OURSELVES, *words], stdout=subprocess.PIPE, timeout=seconds + 60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class _Connection(asyncio.Protocol):
    """Asks, waits for the answer, asks again. Cheaper than any client: the generator must not be the
    limit."""

    def __init__(self, requests: list[bytes], until: float, tally: dict[str, Any]) -> None:
        self._requests, self._until, self._tally = requests, until, tally
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(random.choice(self._requests))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        if len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        now = time.perf_counter()
        self._tally["waits"].append(now - self._asked)
        self._tally["wrong"] += not self._buffer.startswith(b"HTTP/1.1 200")
        self._buffer = b""
        if now < self._until:
            self._next()
        else:
            self._transport.close()
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the server closed the connection"))


async def _load(name: str, folder: Path, port: int, seconds: float) -> dict[str, Any]:
    if name == "bare":
        requests = [b"GET /bare HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    else:
        tokens = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
        head = "HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer"
        requests = [
            f"GET /v1/workers/{user} {head} {token}\r\n\r\n".encode() for user, token in tokens.items()
        ]
    loop = asyncio.get_running_loop()
    tally: dict[str, Any] = {"waits": [], "wrong": 0}
    began = time.perf_counter()
    made = [
        await loop.create_connection(lambda: _Connection(requests, began + seconds, tally), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(protocol.ended for _, protocol in made))
    took = time.perf_counter() - began
    waits = sorted(tally["waits"])
    return {
        "answers": len(waits),
        "per_second": len(waits) / took,
        "p50_ms": waits[len(waits) // 2] * 1000,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1000,
        "wrong": tally["wrong"],
    }


if __name__ == "__main__":
    sys.exit(main())
