"""Jobs in Valkey: every step one Lua file, every pool one slot, every touched key declared.

Times come from the caller's clock. Clocks of two hosts may differ by more than a little: that moves
when a claim ends, never whether two claims can both count, which the token decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from muster.clock import Clock
from muster.jobs.model import (
    RETRY_FIRST,
    RETRY_MAX,
    Claims,
    Counts,
    Finished,
    Held,
    Ids,
    Items,
    JobStatus,
    NewJob,
    Outcomes,
    PoolSettings,
    Turn,
    Verdict,
    WorkItem,
)
from muster.jobs.ports import _VISIBILITY, WorkPool
from muster.jobs.text import decode, encode
from muster.store import Step, Store, command, fields, tagged, text

T = TypeVar("T")

_LUA = Path(__file__).parent / "lua"
_TURN = _LUA / "turn.lua"
_POOLS = "jobs:pools"  # SET of the names of all pools
_PAGE = 500
_RETRY = (int(RETRY_FIRST.total_seconds() * 1000), int(RETRY_MAX.total_seconds() * 1000))
_MOST = 1000  # jobs of one turn: Lua hands over no more than some thousand values at once
_LOOK_EVERY_S = 0.02  # how late a delayed job may be while others keep the pool busy
_STATUS = {status.value: status for status in JobStatus}


class ValkeyPool(WorkPool):
    """One pool: a handful of keys with the hash tag `{name}`."""

    def __init__(self, name: str, store: Store, clock: Clock) -> None:
        self.name = name
        self._store = store
        self._clock = clock
        key = {part: f"jobs:{part}:{{{name}}}" for part in _PARTS}
        self._wake = key["wake"]
        self._keys = key
        self._turn_keys = _pick(key, "ready delayed claimed job dedup stats wake")
        self._turn_for = ""  # the worker whose keys these are, the held set last
        self._known = False
        self._looked = 0.0  # when delayed jobs were last looked for

    def push_many(self, jobs: Sequence[NewJob]) -> Ids:
        if not jobs:
            return []
        now = self._clock.now()
        args: list[Any] = [int(now * 1e6)]
        for new in jobs:
            body = (new.data, new.kind, now, new.time_limit, new.parent)
            run_at = int((now + new.delay) * 1000) if new.delay > 0 else 0
            args += [new.dedup or "", run_at, new.max_retries, new.priority, encode(body)]
        step = self._step(
            "push", "ready delayed job dedup ids seq wake", args, lambda r: [text(i) for i in r]
        )
        if self._known:
            return self._store.one(step)
        # The list of pools is in another slot, so it is a step of its own; once per process is enough.
        ids: Ids = self._store.run(command("SADD", _POOLS, self.name, parse=bool), step)[1]
        self._known = True
        return ids

    def turn(
        self,
        worker_id: str,
        finished: Sequence[Finished] = (),
        claim: int = 1,
        visibility: float = _VISIBILITY,
    ) -> Turn:
        if len(finished) > _MOST:
            first = self.turn(worker_id, finished[:_MOST], 0)
            rest = self.turn(worker_id, finished[_MOST:], claim, visibility)
            return Turn(first.accepted + rest.accepted, rest.claimed)
        now = self._clock.now()
        # A turn that claims nothing looks for nothing: the next one must not think that it was done.
        look = claim > 0 and abs(now - self._looked) > _LOOK_EVERY_S
        if look:
            self._looked = now
        until = int((now + visibility) * 1000)
        args: list[Any] = [worker_id, int(now * 1000), until, min(claim, _MOST), int(look)]
        for done in finished:
            args += (done.id, done.token, "" if done.result is None else encode(done.result))
        if worker_id != self._turn_for:
            self._turn_for = worker_id
            self._turn_keys = (*self._turn_keys[:7], self._held(worker_id))
        accepted, flat = self._store.one(Step(_TURN, self._turn_keys, tuple(args), _as_is))
        return Turn(
            [flag == 1 for flag in accepted],
            [self._item(text(flat[i]), *flat[i + 1 : i + 4]) for i in range(0, len(flat), 4)],
        )

    def settle(
        self, claims: Sequence[tuple[str, int]], verdict: Verdict, error: str | None = None
    ) -> Outcomes:
        flat = [part for claim in claims for part in claim]
        after = self._settle("claims", verdict, error, "", flat)
        return [_STATUS[status] if status else None for status in after]

    def release_by_worker(self, worker_id: str) -> int:
        return len(self._settle("worker", Verdict.RELEASE, f"worker {worker_id} was lost", worker_id, ()))

    def release_expired(self) -> int:
        return len(self._settle("expired", Verdict.RELEASE, "the claim was not extended in time", "", ()))

    def extend(self, worker_id: str, visibility: float = _VISIBILITY) -> Claims:
        until = int((self._clock.now() + visibility) * 1000)
        keys = (self._keys["claimed"], self._keys["job"], self._held(worker_id))
        flat = self._store.one(Step(_LUA / "extend.lua", keys, (worker_id, until), tagged))
        return [Held(flat[i], int(flat[i + 1]), flat[i + 2] == "1") for i in range(0, len(flat), 3)]

    def report(
        self, item_id: str, token: int, progress: dict[str, Any] | None = None, checkpoint: Any = None
    ) -> bool:
        args = (item_id, token, _text(progress), _text(checkpoint))
        return self._store.one(self._step("report", "job", args, tagged))[0] == "saved"

    def cancel(self, item_id: str) -> JobStatus | None:
        args = (item_id, int(self._clock.now() * 1000))
        status = self._store.one(self._step("cancel", "ready delayed job dedup stats", args, tagged))[0]
        return _STATUS.get(status)

    def requeue(self, item_id: str) -> bool:
        step = self._step("requeue", "ready job poisoned stats wake", (item_id,), tagged)
        return self._store.one(step)[0] == "queued"

    def get(self, item_id: str) -> WorkItem | None:
        return self._read([item_id])[0]

    def list(self, status: JobStatus | None = None, *, limit: int = 50, before: str | None = None) -> Items:
        found: Items = []
        top = f"({before}" if before else "+"
        while len(found) < limit:
            ids = self._store.one(
                command(
                    "ZRANGE", self._keys["ids"], top, "-", "BYLEX", "REV", "LIMIT", 0, _PAGE, parse=tagged
                )
            )
            if not ids:
                break
            found += [job for job in self._read(ids) if job and (status is None or job.status is status)]
            top = f"({ids[-1]}"
        return found[:limit]

    def size(self) -> int:
        return sum(self._store.run(self._card("ready"), self._card("delayed")))

    def running(self) -> int:
        return self._store.one(self._card("claimed"))

    def counts(self) -> Counts:
        known, ready, delayed, claimed, poisoned, stats, first = self._store.run(
            self._card("ids"),
            self._card("ready"),
            self._card("delayed"),
            self._card("claimed"),
            self._card("poisoned"),
            command("HGETALL", self._keys["stats"], parse=fields),
            command("ZRANGE", self._keys["ready"], 0, 0, parse=tagged),
        )
        # Ids are the microsecond of the push. With priorities the head is not the oldest: a lower bound.
        age = max(self._clock.now() - int(first[0]) / 1e6, 0.0) if first else 0.0
        cancelled = int(stats.get("cancelled", 0))
        return Counts(
            pending=ready + delayed,
            claimed=claimed,
            done=known - ready - delayed - claimed - poisoned - cancelled,
            poisoned=poisoned,
            cancelled=cancelled,
            late=int(stats.get("late", 0)),
            oldest_pending_s=age,
        )

    def wait(self, timeout: float) -> None:
        self._store.run(command("BLPOP", self._wake, max(timeout, 0.001), parse=bool))

    def trim(self, retention: float, poison_retention: float, keep: int) -> int:
        now = self._clock.now()
        known, ready, delayed, claimed = self._store.run(
            self._card("ids"), self._card("ready"), self._card("delayed"), self._card("claimed")
        )
        ended = known - ready - delayed - claimed
        surplus, after, total = max(0, ended - keep), "", 0
        before = int((now - retention) * 1000), int((now - poison_retention) * 1000)
        oldest_kept = str(int((now - min(retention, poison_retention)) * 1e6))
        while surplus or after < oldest_kept:
            step = self._step("trim", "ids job poisoned stats", (*before, surplus, after, _PAGE), tagged)
            gone, left, after = self._store.one(step)
            total, surplus = total + int(gone), int(left)
            if not after:
                break
        return total

    def settings(self) -> PoolSettings:
        kept = self._store.one(command("HGETALL", self._keys["settings"], parse=fields))
        if not kept:
            return PoolSettings()
        return PoolSettings(int(kept["max_workers"]), kept["pin"] or None)

    def configure(self, settings: PoolSettings) -> None:
        values = ("max_workers", settings.max_workers, "pin", settings.pin or "")
        self._store.run(
            command("SADD", _POOLS, self.name, parse=bool),
            command("HSET", self._keys["settings"], *values, parse=bool),
        )

    def _held(self, worker_id: str) -> str:
        return f"jobs:held:{{{self.name}}}:{worker_id}"

    def _card(self, part: str) -> Step[int]:
        return command("ZCARD", self._keys[part], parse=int)

    def _step(self, name: str, parts: str, args: Sequence[Any], parse: Callable[[Any], T]) -> Step[T]:
        return Step(_LUA / f"{name}.lua", _pick(self._keys, parts), tuple(args), parse)

    def _settle(
        self, by: str, verdict: Verdict, error: str | None, worker_id: str, claims: Sequence[Any]
    ) -> tuple[str, ...]:
        keys = _pick(self._keys, "ready delayed claimed job dedup stats poisoned wake")
        args = (by, verdict.value, int(self._clock.now() * 1000), *_RETRY, error or "", worker_id, *claims)
        return self._store.one(Step(_LUA / "settle.lua", (*keys, self._held(worker_id)), args, tagged))

    def _read(self, ids: Sequence[str]) -> tuple[WorkItem | None, ...]:
        names = [name for i in ids for name in (i, f"{i}:b", f"{i}:c", f"{i}:r", f"{i}:e", f"{i}:p")]
        flat = self._store.one(command("HMGET", self._keys["job"], *names, parse=tuple))
        return tuple(
            self._item(job_id, *flat[6 * n : 6 * n + 6]) if flat[6 * n] else None
            for n, job_id in enumerate(ids)
        )

    def _item(
        self,
        job_id: str,
        state: Any,
        body: Any,
        checkpoint: Any = None,
        result: Any = None,
        error: Any = None,
        progress: Any = None,
    ) -> WorkItem:
        line, dedup = text(state).split("\n", 1)
        (status, finished, token, attempts, claimed, cancel, run_at, retries, priority, worker) = line.split(
            " ", 9
        )
        data, kind, created, limit, parent = decode(text(body))
        return WorkItem(
            job_id, self.name, data, kind, _STATUS[status], int(attempts), int(retries), int(token),
            worker or None, _moment(claimed), int(priority), _moment(run_at), created, _moment(finished),
            cancel == "1", dedup or None, limit, parent, _value(result), text(error) if error else None,
            _value(progress), _value(checkpoint),
        )  # fmt: skip


_PARTS = [
    "ready",
    "delayed",
    "claimed",
    "job",
    "dedup",
    "stats",
    "poisoned",
    "ids",
    "seq",
    "wake",
    "settings",
]


class ValkeyWork:
    """Every pool of one server."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def pool(self, name: str) -> ValkeyPool:
        return ValkeyPool(name, self._store, self._clock)

    def pools(self) -> list[str]:
        return sorted(self._store.one(command("SMEMBERS", _POOLS, parse=tagged)))


def _pick(keys: dict[str, str], parts: str) -> tuple[str, ...]:
    return tuple(keys[part] for part in parts.split())


def _moment(ms: str) -> float | None:
    return None if ms == "0" else int(ms) / 1000


def _text(value: Any) -> str:
    return "" if value is None else encode(value)


def _value(reply: Any) -> Any:
    return decode(text(reply)) if reply else None


def _as_is(reply: Any) -> Any:
    return reply
