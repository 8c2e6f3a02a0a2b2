"""`muster supervise`: the supervisor on this machine, until a signal or until another one takes over."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from muster.clock import SystemClock
from muster.errors import LostLease, Refused, TryLater
from muster.store import Store
from supervisor import config
from supervisor.embedded import SharedServer
from supervisor.fleet import Fleet
from supervisor.process import LocalLauncher
from supervisor.supervisor import AlreadyRunning, Supervisor
from supervisor.timings import Timings
from worker.cycle_keys import Keys
from worker.cycle_main import DATA, PREFIX, URL, connect

if TYPE_CHECKING:
    from supervisor.server import ApiServer

_LOG = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1  #: the API's port is taken
EXIT_BROKEN = 2  #: the file cannot be used
EXIT_HELD = 4  #: another supervisor runs, or took over
EXIT_AWAY = 5  #: the server does not answer

EMBEDDED = Path(".muster/supervisor")


class Signals:
    """What the signals asked for, and a pipe that ends a wait: signals and other threads write to it."""

    def __init__(self) -> None:
        self.stop = False
        self.reload = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)

    def _on_stop(self, *_: object) -> None:
        self.stop = True

    def _on_reload(self, *_: object) -> None:
        self.reload = True

    def wake(self) -> None:
        """End the wait that is going on, or the next one."""
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            return  # a full pipe wakes as well as one more byte

    def wait(self, seconds: float, supervisor: Supervisor) -> None:
        """Wait for a signal, a wake, the exit of any worker, or the time."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for process in supervisor.processes():
            poll.register(process.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            return


def run(file: Path, url: str | None, api_port: int, prefix: str, environment: Mapping[str, str]) -> int:
    """Run until asked to stop; the exit code. Without a URL the folder's embedded server is used."""
    sys.path.insert(0, os.getcwd())  # where the workers will find their strategies, too
    try:
        timings = Timings.from_environment(environment)
        config.load(file)
    except Refused as broken:
        _LOG.error("%s", broken)
        return EXIT_BROKEN
    signals = Signals()
    embedded = None if url else SharedServer(EMBEDDED)
    url = url or (embedded.open() if embedded else "")
    data = str(Path(environment.get(DATA, ".data")).resolve())
    launcher = LocalLauncher({**environment, URL: url, PREFIX: prefix, DATA: data})
    store = Store(connect(url, retries=1))
    supervisor = Supervisor(file, store, launcher, SystemClock(), Keys(prefix), timings)
    try:
        supervisor.begin()
    except TryLater as away:
        _LOG.error("%s", away)
        return EXIT_AWAY
    except AlreadyRunning as other:
        _LOG.error("%s", other)
        return EXIT_HELD
    try:
        api = _serve(supervisor, signals, store, api_port, prefix)
    except Refused as taken:
        _LOG.error("%s", taken)
        supervisor.lock.release()
        if embedded and not supervisor.processes():
            embedded.close()  # nobody is left who could need it
        return EXIT_FAILED
    _LOG.info("supervising %d workers of %s on %s:*", len(supervisor.slots), file, prefix)
    try:
        _loop(supervisor, signals)
        api.stop()
        supervisor.end(lambda seconds: signals.wait(seconds, supervisor))
    except LostLease as lost:
        _LOG.error("%s", lost)
        return EXIT_HELD
    if embedded:
        embedded.close()
    return EXIT_OK


def _serve(
    supervisor: Supervisor,
    signals: Signals,
    store: Store,
    port: int,
    prefix: str,
) -> ApiServer:
    # Imported here: it takes most of a second, which a supervisor that finds another one running never needs.
    from supervisor import server
    from supervisor.api import SupervisorSource

    source = SupervisorSource(Fleet(supervisor, signals.wake), store, Keys(prefix), supervisor.clock)
    api = server.ApiServer(server.application(source, store, EMBEDDED), server.listen(port))
    api.start()
    _LOG.info("API on %s, tokens from 'muster token --dir %s'", api.url, EMBEDDED)
    return api


def _loop(supervisor: Supervisor, signals: Signals) -> None:
    while not signals.stop:
        if signals.reload:
            signals.reload = False
            try:
                supervisor.reload()
            except Refused as broken:
                _LOG.error("reload refused, the old set keeps running: %s", broken)
        signals.wait(supervisor.step(), supervisor)
    _LOG.info("asked to stop: publishing SHUTDOWN, %g s grace", supervisor.limits.grace)
