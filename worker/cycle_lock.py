"""A lock that names its holder, so that a dead holder on this machine costs nobody a wait.

The value of a lock is the identity of a process: host, boot, pid namespace, pid, start time and a
nonce. On the same boot and in the same pid namespace a successor can PROVE that the holder is gone
(no such pid, or the pid was started at another time) and takes over at once. From anywhere else the
holder counts as alive until the lock's TTL ends.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

from muster.clock import Clock
from muster.store import Step, Store, command, lua, tagged, text

_DEAD_STATES = "ZXx"  # a zombie has left every lock behind; only its parent has not looked yet


def process_start(pid: int) -> int | None:
    """When `pid` was started, in clock ticks since boot; None if no such process is alive."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before ')' may itself hold spaces
    return None if state in _DEAD_STATES else int(rest[18])


@cache
def _machine() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname(), boot, os.readlink("/proc/self/ns/pid").strip("pid:[]")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, named so exactly that no later process can be taken for it."""

    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: int
    nonce: str

    @classmethod
    def me(cls) -> Holder:
        """This process. Every call makes another identity: keep the one you took a lock with."""
        started = process_start(os.getpid())
        assert started is not None
        return cls(*_machine(), os.getpid(), started, secrets.token_hex(4))

    @classmethod
    def parse(cls, value: str) -> Holder | None:
        """The holder a lock's value names; None for a value some other program wrote."""
        try:
            host, boot, namespace, pid, started, nonce = value.split("/")
            return cls(host, boot, namespace, int(pid), int(started), nonce)
        except ValueError:
            return None

    def value(self) -> str:
        return "/".join(
            (self.host, self.boot, self.pid_namespace, str(self.pid), str(self.started), self.nonce)
        )

    @property
    def here(self) -> bool:
        """Can this process see the holder's pid? Only then is its absence a proof."""
        return (self.boot, self.pid_namespace) == _machine()[1:]

    @property
    def dead(self) -> bool:
        """Is the holder provably gone? False also when nobody here can know."""
        return self.here and process_start(self.pid) != self.started


def name_holder(value: str) -> str:
    """A lock's value in words for a message."""
    holder = Holder.parse(value)
    return f"pid {holder.pid} on {holder.host}" if holder else repr(value)


class Lock:
    """One lock, taken by `SET NX PX` and kept by compare-and-set. `take` and `renew` may raise TryLater."""

    def __init__(self, store: Store, key: str, ttl: timedelta, clock: Clock) -> None:
        self.key = key
        self.value = Holder.me().value()
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._until = float("-inf")
        #: How often SET NX won. More than once means that the server forgot us in between.
        self.taken = 0

    def take(self) -> str | None:
        """None when the lock is ours now; otherwise the value of the living process that holds it."""
        while True:
            sent = self._clock.monotonic()
            if self._store.one(_set_if_absent(self.key, self.value, self._ttl)):
                self._until = sent + self._ttl.total_seconds()
                self.taken += 1
                return None
            found = self._store.one(command("GET", self.key, parse=lambda v: None if v is None else text(v)))
            if found is None:
                continue  # it ended between the two calls
            if found == self.value:
                return self.renew()  # an earlier SET of ours arrived, only its answer was lost
            holder = Holder.parse(found)
            if holder is None or not holder.dead:
                return found
            self._store.one(_delete(self.key, found))

    def renew(self) -> str | None:
        """Like `take`, for a lock we hold. A lock that vanished (an emptied server) is taken again."""
        sent = self._clock.monotonic()
        answer = self._store.one(
            lua("cas_extend", [self.key], [self.value, round(self._ttl.total_seconds() * 1000)], tagged)
        )
        match answer:
            case ("extended",):
                self._until = sent + self._ttl.total_seconds()
                return None
            case ("missing",):
                self._until = float("-inf")
                return self.take()
            case _:
                self._until = float("-inf")
                return answer[1]

    def held(self) -> bool:
        """May the holder act? Measured on our own clock from BEFORE the last renewal was sent."""
        return self._clock.monotonic() < self._until

    def release(self) -> None:
        """Give it back, if it is still ours."""
        self._until = float("-inf")
        self._store.one(_delete(self.key, self.value))


def _set_if_absent(key: str, value: str, ttl: timedelta) -> Step[bool]:
    milliseconds = round(ttl.total_seconds() * 1000)
    return command("SET", key, value, "NX", "PX", milliseconds, parse=bool)


def _delete(key: str, value: str) -> Step[tuple[str, ...]]:
    return lua("cas_delete", [key], [value], tagged)
