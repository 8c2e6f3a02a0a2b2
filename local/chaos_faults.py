"""What a chaos run can do to a running system, one method per fault. Each returns what it hit."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import redis

from local.driver import EngineProcess, send_signal, until
from local.trader import Trader

FULL_DISK_S = 4.0
#: How long the broker and the endpoint may take to be back: they are started again within seconds.
BACK_S = 20.0
#: A broker as it is on a bad day, all the time.
BROKER_KNOBS = {"partial": 0.2, "late": 0.1, "late_by_s": 1.0, "duplicate": 0.2, "out_of_order": 0.2}
BROKER_KNOBS |= {"lost_answer": 0.03, "rejected": 0.03}
#: How long a fault that needs calm waits for it.
CALM_S = 40.0


class Faults:
    """Faults on one engine and everything around it. `calm` says whether everything is settled, within so
    many seconds; `emptied` is told before the store loses its data."""

    def __init__(
        self,
        engine: EngineProcess,
        trader: Trader,
        dice: random.Random,
        calm: Callable[[float], bool],
        emptied: Callable[[], None],
    ) -> None:
        self._engine, self._trader, self._random = engine, trader, dice
        self._calm, self._emptied = calm, emptied
        self._frozen: dict[int, float] = {}
        self._waiting = threading.Event()

    def all(self) -> list[tuple[int, str, Callable[[], str]]]:
        """Every fault with its weight: the mundane ones come more often."""
        return [
            (6, "kill worker", self._kill_worker),
            (3, "freeze worker", self._freeze_worker),
            (3, "starve worker", self._starve_worker),
            (2, "drop connections", self._drop_connections),
            (2, "kill api", self._kill_api),
            (2, "kill engine", self._kill_engine),
            (2, "kill valkey", self._kill_valkey),
            (1, "empty valkey", self._empty_valkey),
            (1, "kill aws endpoint", self._kill_endpoint),
            (2, "full disk", self._fill_disk),
            (3, "kill broker", self._kill_broker),
            (2, "drop streams", self._drop_streams),
        ]

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

    def _worker_pid(self) -> tuple[str, int] | None:
        """A ready worker, chosen by the seed among those there are."""
        try:
            rows = [row for row in self._engine.workers() if row["phase"] == "ready" and row["pid"]]
        except httpx.HTTPError:
            return None
        if not rows:
            return None
        row = self._random.choice(rows)
        return row["user_id"], row["pid"]

    def _kill_worker(self) -> str:
        if (found := self._worker_pid()) is None:
            return "(none ready)"
        send_signal(found[1], signal.SIGKILL)
        return found[0]

    def _freeze_worker(self) -> str:
        if (found := self._worker_pid()) is None:
            return "(none ready)"
        seconds = self._random.choice([5.0, 20.0, 45.0])
        if send_signal(found[1], signal.SIGSTOP):
            self._frozen[found[1]] = time.monotonic() + seconds
        return f"{found[0]} for {seconds:.0f} s"

    def _starve_worker(self) -> str:
        """Many short stops: a process that hardly gets any time."""
        if (found := self._worker_pid()) is None:
            return "(none ready)"
        for _ in range(15):
            send_signal(found[1], signal.SIGSTOP)
            self._waiting.wait(0.15)
            send_signal(found[1], signal.SIGCONT)
            self._waiting.wait(0.02)
        return found[0]

    def _drop_connections(self) -> str:
        return (
            f"{self._valkey_call(lambda client: client.execute_command('CLIENT', 'KILL', 'TYPE', 'normal'))}"
        )

    def _kill_api(self) -> str:
        return self._kill_part("local.api_process")

    def _kill_valkey(self) -> str:
        """SIGKILL; the engine starts it again from its append-only file."""
        return self._kill_part("valkey-server")

    def _empty_valkey(self) -> str:
        """All data gone under live workers. Only while everybody is up and every order has its end: a wish
        without a worker to restore it, or an order without a broker to ask, cannot survive the loss of the
        only store."""
        self.wake_all()
        if not self._calm(CALM_S):
            return "(not settled, left out)"
        self._emptied()
        self._valkey_call(lambda client: client.flushall())
        return ""

    def _kill_endpoint(self) -> str:
        """Its queues and secrets are in memory: only while no command waits in them, and nobody starts before
        the engine has put the secrets back. The checks in them are lost, the orders are not."""
        if not self._calm(CALM_S):
            return "(not settled, left out)"
        self._trader.excuse()
        killed = self._kill_part("ministack")
        until(self._secrets_are_back, "the endpoint is back", BACK_S)
        return killed

    def _secrets_are_back(self) -> bool:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        words = {"region_name": "us-east-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}
        vault = boto3.client("secretsmanager", endpoint_url=self._engine.endpoints["aws"], **words)
        try:
            names = [one["Name"] for one in vault.list_secrets(MaxResults=100)["SecretList"]]
        except (BotoCoreError, ClientError):
            return False
        return {f"muster/broker/{user}" for user in self._trader.users} <= set(names)

    def _fill_disk(self) -> str:
        """For a while the engine can make no file grow, as on a full disk or a used-up quota."""
        assert self._engine.process is not None
        engine = psutil.Process(self._engine.process.pid)
        _, hard = engine.rlimit(psutil.RLIMIT_FSIZE)
        engine.rlimit(psutil.RLIMIT_FSIZE, (0, hard))
        self.pause(FULL_DISK_S)
        engine.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
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
        return f"{self._trader.drop_streams()}"

    def turn_knobs(self) -> bool:
        """Set the broker's knobs; whether it was there to do so."""
        try:
            self._trader.turn(**BROKER_KNOBS)
        except httpx.HTTPError:
            return False
        return True

    def _kill_part(self, name: str) -> str:
        for process in self._engine.processes():
            try:
                if any(name in word for word in process.cmdline()):
                    process.kill()
                    return f"pid {process.pid}"
            except psutil.NoSuchProcess:
                continue
        return "(not running)"

    def _valkey_call(self, call: Callable[[Any], Any]) -> Any:
        client = redis.Redis.from_url(self._engine.endpoints["valkey"], socket_timeout=2)
        try:
            return call(client)
        except redis.RedisError as away:
            return f"({away})"
        finally:
            client.close()
