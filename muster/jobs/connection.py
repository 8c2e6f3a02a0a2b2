"""One door to the three backends: a URL, or the `backends` block of a machine's YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from muster.clock import Clock, SystemClock
from muster.errors import Refused
from muster.jobs.ports import Jobs, RegistrationBackend, WorkBackend

if TYPE_CHECKING:
    from muster.store import Store


def connect(where: str | Mapping[str, str], clock: Clock | None = None) -> Jobs:
    """Jobs at a URL: `memory://`, `sqlite:///path` or `valkey://host:port/0`.

    `sqlite:///path?synchronous=normal` trades the last moments before a power cut for speed. A mapping
    is the YAML form: `registration` and `work` are each memory, sqlite, valkey or a URL, with
    `registration_path` and `work_path` (a file, or a server's URL) beside them.
    """
    clock = clock or SystemClock()
    if isinstance(where, str):
        work, registration = _open(where, clock)
        return Jobs(work, registration, where)
    urls = [_url(where, part) for part in ("work", "registration")]
    if urls[0] == urls[1]:
        return connect(urls[0], clock)
    return Jobs(_open(urls[0], clock)[0], _open(urls[1], clock)[1], urls[0])


def _url(settings: Mapping[str, str], part: str) -> str:
    kind = settings.get(part, "memory")
    path = settings.get(f"{part}_path")
    if "://" in kind:
        return kind
    if kind == "sqlite":
        return f"sqlite:///{path or 'workers.sqlite'}"
    if kind in ("valkey", "redis"):
        return path or "valkey://127.0.0.1:6379/0"
    return f"{kind}://"


def _open(url: str, clock: Clock) -> tuple[WorkBackend, RegistrationBackend]:
    parts = urlsplit(url)
    match parts.scheme:
        # Each backend is imported where it is chosen: a function on Valkey need not load SQLite.
        case "memory":
            from muster.jobs.memory import MemoryRegistration, MemoryWork

            return MemoryWork(clock), MemoryRegistration(clock)
        case "sqlite":
            synchronous = parse_qs(parts.query).get("synchronous", ["full"])[0]
            path = unquote(parts.path)[1:] or ".muster/jobs.db"
            if synchronous not in ("full", "normal"):
                raise Refused(f"synchronous={synchronous} is not known; use full or normal")
            from muster.jobs.sqlite import SQLiteWork
            from muster.jobs.sqlite_file import SQLiteFile
            from muster.jobs.sqlite_workers import SQLiteRegistration

            file = SQLiteFile(Path(path), synchronous)
            return SQLiteWork(file, clock), SQLiteRegistration(file, clock)
        case "valkey" | "valkeys" | "redis" | "rediss":
            return _open_valkey(url, clock)
        case other:
            raise Refused(
                f"no job backend speaks '{other}'; use memory://, sqlite:///path or valkey://host:6379/0"
            )


def on_store(store: Store, url: str, clock: Clock | None = None) -> Jobs:
    """Jobs on a store that is open already, with its sign-in and its slots. `url` is where it is."""
    from muster.jobs.valkey import ValkeyWork
    from muster.jobs.valkey_workers import ValkeyRegistration

    clock = clock or SystemClock()
    return Jobs(ValkeyWork(store, clock), ValkeyRegistration(store, clock), url)


def _open_valkey(url: str, clock: Clock) -> tuple[WorkBackend, RegistrationBackend]:
    # Imported here: the client costs 38 MB, which a worker on SQLite need not pay.
    from muster.jobs.valkey_client import DirectClient
    from muster.store import Store

    jobs = on_store(Store(DirectClient.from_url(url.replace("valkey", "redis", 1))), url, clock)
    return jobs.work, jobs.registration
