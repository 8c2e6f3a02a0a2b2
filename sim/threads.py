"""What a session's code takes from `threading`, on virtual time; put in its place by `install`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sim.workers import SimWorker, Stopping, TurnLock

if TYPE_CHECKING:
    from sim.world import World

_running: list[World] = []


def use(world: World) -> None:
    """Threads, locks and dice of this process belong to this world from now on."""
    _running[:] = [world]


class Thread:
    """A further thread of the worker that makes it."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self.name, self.daemon = name, daemon
        self._body = partial(target, *args)
        self._worker = _worker()
        self._over = Stopping(self._worker)

    def start(self) -> None:
        self._worker.world.loop.after(0.0, lambda: self._worker.spawn(self._run))

    def _run(self) -> None:
        try:
            self._body()
        finally:
            self._over.set()

    def join(self, timeout: float) -> None:
        self._over.wait(timeout)


def Event() -> Stopping:  # noqa: N802 - in the place of `threading.Event`
    return Stopping(_worker())


def Lock() -> TurnLock:  # noqa: N802
    return TurnLock(_running[-1])


def uniform(low: float, high: float) -> float:
    """In the place of `random.uniform`: the world's own dice."""
    return _running[-1].rng.uniform(low, high)


def _worker() -> SimWorker:
    return cast(SimWorker, _running[-1].loop.actor)


class Executor:
    """In the place of `ThreadPoolExecutor`: all at the same time, as threads of the running invocation."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left: `map` waits for all."""

    def map(self, call: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
        loop = _running[-1].loop
        actor, wake = loop.actor, loop.resumer()
        assert actor is not None
        jobs = list(things)
        assert len(jobs) <= self._most
        results: dict[int, Any] = {}
        errors: list[Exception] = []

        def run(number: int) -> None:
            try:
                results[number] = call(jobs[number])
            except Exception as failed:  # noqa: BLE001 - raised by whoever waits, as a future would
                errors.append(failed)
            if len(results) + len(errors) == len(jobs):
                loop.after(0.0, wake)

        for number in range(len(jobs)):
            loop.after(0.0, partial(loop.spawn, actor, partial(run, number)))
        if jobs:
            loop.park()
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(jobs))]
