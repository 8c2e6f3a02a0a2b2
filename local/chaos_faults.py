"""What a chaos run can do to a running system, one method per kind of fault, and the order they come in."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import redis

from local.driver import EngineProcess, send_signal, until
from local.endpoint import PROCESS as ENDPOINT
from local.trader import Trader

#: What the store's process is called.
VALKEY = "valkey-server"
FULL_DISK_S = 4.0
#: How long the broker may take to be back: it is started again within seconds.
BACK_S = 20.0
#: A broker as it is on a bad day, all the time.
BROKER_KNOBS = {"partial": 0.2, "late": 0.1, "late_by_s": 1.0, "duplicate": 0.2, "out_of_order": 0.2}
BROKER_KNOBS |= {"lost_answer": 0.03, "rejected": 0.03}


class Missed(Exception):
    """There was nothing to hit; the text says why."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `strike` returns what it hit, or raises `Missed`."""

    name: str
    weight: int  #: how often it comes, beside the others; the mundane ones come more often
    strike: Callable[[], str]
    needs_calm: bool = False  #: only while everybody is as wanted and every order has its end


class Deck:
    """Which kind comes next: first each once, in the seed's order, then by weight. One that missed comes
    again after the others of the first round: a run in which a kind never struck says nothing about it."""

    def __init__(self, kinds: Sequence[Kind], dice: random.Random) -> None:
        self._kinds, self._dice = kinds, dice
        self._first = dice.sample(kinds, len(kinds))

    def draw(self) -> Kind:
        if self._first:
            return self._first.pop(0)
        return self._dice.choices(self._kinds, weights=[kind.weight for kind in self._kinds])[0]

    def missed(self, kind: Kind) -> None:
        self._first.append(kind)


class Faults:
    """Faults on one engine and everything around it. `emptied` is told before the store loses its data."""

    def __init__(
        self,
        engine: EngineProcess,
        trader: Trader,
        dice: random.Random,
        emptied: Callable[[], None],
    ) -> None:
        self._engine, self._trader, self._random = engine, trader, dice
        self._emptied = emptied
        self._frozen: dict[int, float] = {}
        self._waiting = threading.Event()

    def all(self) -> tuple[Kind, ...]:
        return (
            Kind("kill worker", 6, self._kill_worker),
            Kind("freeze worker", 3, self._freeze_worker),
            Kind("starve worker", 3, self._starve_worker),
            Kind("drop connections", 2, self._drop_connections),
            Kind("kill api", 2, self._kill_api),
            Kind("kill engine", 2, self._kill_engine),
            Kind("kill valkey", 2, self._kill_valkey),
            Kind("empty valkey", 1, self._empty_valkey, needs_calm=True),
            Kind("kill aws endpoint", 2, self._kill_endpoint),
            Kind("full disk", 2, self._fill_disk),
            Kind("kill broker", 3, self._kill_broker),
            Kind("drop streams", 2, self._drop_streams),
        )

    def pause(self, seconds: float) -> None:
        """Wait, and wake the frozen whose time has come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for pid, wake_at in list(self._frozen.items()):
                if time.monotonic() >= wake_at:
                    send_signal(pid, signal.SIGCONT)
                    del self._frozen[pid]
            self._waiting.wait(0.1)

    def wake_all(self) -> None:
        for pid in list(self._frozen):
            send_signal(pid, signal.SIGCONT)
            del self._frozen[pid]

    def _worker_pid(self) -> tuple[str, int]:
        """A ready worker, chosen by the seed among those there are."""
        try:
            rows = [row for row in self._engine.workers() if row["phase"] == "ready" and row["pid"]]
        except httpx.HTTPError as away:
            raise Missed(f"the API is away: {away!r}") from away
        if not rows:
            raise Missed("no worker is ready")
        row = self._random.choice(rows)
        return row["user_id"], row["pid"]

    def _kill_worker(self) -> str:
        user, pid = self._worker_pid()
        _signal(pid, signal.SIGKILL)
        return user

    def _freeze_worker(self) -> str:
        user, pid = self._worker_pid()
        seconds = self._random.choice([5.0, 20.0, 45.0])
        _signal(pid, signal.SIGSTOP)
        self._frozen[pid] = time.monotonic() + seconds
        return f"{user} for {seconds:.0f} s"

    def _starve_worker(self) -> str:
        """Many short stops: a process that hardly gets any time."""
        user, pid = self._worker_pid()
        _signal(pid, signal.SIGSTOP)
        for _ in range(15):
            self._waiting.wait(0.15)
            send_signal(pid, signal.SIGCONT)
            self._waiting.wait(0.02)
            send_signal(pid, signal.SIGSTOP)
        send_signal(pid, signal.SIGCONT)
        return user

    def _drop_connections(self) -> str:
        dropped = self._valkey_call(lambda client: client.execute_command("CLIENT", "KILL", "TYPE", "normal"))
        return f"{dropped} of them"

    def _kill_api(self) -> str:
        return self._kill_part("local.api_process")

    def _kill_valkey(self) -> str:
        """SIGKILL; the engine starts it again from its append-only file."""
        return self._kill_part(VALKEY)

    def _empty_valkey(self) -> str:
        """Killed, and all data gone: the engine starts an empty one, with no script and no connection of
        before. It needs calm: a wish without a worker to restore it, or an order without a broker to ask,
        cannot survive the loss of the only store; an audit would miss them however well all else heals."""
        server = self._part(VALKEY)
        self._emptied()
        # The loss must be in the file that it starts from, or it would come back with its data.
        self._valkey_call(_empty_for_good)
        server.kill()
        return f"pid {server.pid}"

    def _kill_endpoint(self) -> str:
        """The queues and the secrets, at any moment. The engine starts it again on its files."""
        return self._kill_part(ENDPOINT)

    def _fill_disk(self) -> str:
        """For a while the engine, Valkey and the AWS endpoint can make no file grow, as on a full disk or
        with a used-up quota: writes are refused, messages too."""
        assert self._engine.process is not None
        full = [psutil.Process(self._engine.process.pid), self._part(VALKEY), self._part(ENDPOINT)]
        try:
            for process in full:
                _limit_files(process, 0)
            self.pause(FULL_DISK_S)
        finally:
            # Also what these have started meanwhile: it was born with their limit.
            for process in self._engine.processes():
                _limit_files(process, None)
        return f"for {FULL_DISK_S:.0f} s"

    def _kill_engine(self) -> str:
        self._engine.kill()
        self._engine.start()
        return ""

    def _kill_broker(self) -> str:
        """The engine starts it again on its book; its knobs are set anew."""
        killed = self._kill_part("local.paper")
        until(self.turn_knobs, "the broker is back", BACK_S)
        return killed

    def _drop_streams(self) -> str:
        try:
            return f"{self._trader.drop_streams()} of them"
        except httpx.HTTPError as away:
            raise Missed(f"the broker is away: {away!r}") from away

    def turn_knobs(self) -> bool:
        """Set the broker's knobs; whether it was there to do so."""
        try:
            self._trader.turn(**BROKER_KNOBS)
        except httpx.HTTPError:
            return False
        return True

    def _kill_part(self, name: str) -> str:
        process = self._part(name)
        process.kill()
        return f"pid {process.pid}"

    def _part(self, name: str) -> psutil.Process:
        for process in self._engine.processes():
            try:
                if any(name in word for word in process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        raise Missed("it is not running")

    def _valkey_call(self, call: Callable[[Any], Any]) -> Any:
        client = redis.Redis.from_url(self._engine.endpoints["valkey"], socket_timeout=2)
        try:
            return call(client)
        except redis.RedisError as away:
            raise Missed(f"Valkey is away: {away}") from away
        finally:
            client.close()


def _signal(pid: int, number: signal.Signals) -> None:
    if not send_signal(pid, number):
        raise Missed("the worker had just ended")


def _empty_for_good(client: Any) -> None:
    client.pipeline(transaction=False).config_set("appendfsync", "always").flushall().execute()


def _limit_files(process: psutil.Process, most: int | None) -> None:
    """How large this process may let a file grow; None: as large as it ever might."""
    with contextlib.suppress(psutil.NoSuchProcess):
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (hard if most is None else most, hard))
