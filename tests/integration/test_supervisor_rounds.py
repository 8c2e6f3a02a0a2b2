"""Health rounds of a supervisor on a fake clock, with processes that do what the test says."""

from __future__ import annotations

import json
import logging
import signal
from itertools import count
from pathlib import Path

import pytest

from muster.clock import FakeClock
from muster.errors import LostLease, Refused
from muster.model import Phase
from muster.store import Store
from supervisor.config import Spec
from supervisor.fleet import Fleet, UnknownKey
from supervisor.supervisor import AlreadyRunning, Supervisor
from worker.cycle_keys import Keys

KEYS = Keys("t")


class FakeProcess:
    """Leaves when asked, unless `deaf`."""

    def __init__(self, pid: int, spec_text: str) -> None:
        self.pid, self.spec_text = pid, spec_text
        self.ended: str | None = None
        self.deaf = False
        self.signals: list[signal.Signals] = []

    def fileno(self) -> int:
        raise AssertionError("a fake process cannot be waited for")

    def exit(self) -> str | None:
        return self.ended

    def send(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number is signal.SIGKILL or not self.deaf:
            self.ended = f"ended by {number.name}"


class FakeLauncher:
    """Remembers every process it started; `living` are those a successor could adopt, by lock value."""

    def __init__(self) -> None:
        self._pids = count(1000)
        self.spawned: dict[str, list[FakeProcess]] = {}
        self.living: dict[str, FakeProcess] = {}
        self.broken = False

    def spawn(self, spec: Spec) -> FakeProcess:
        if self.broken:
            raise OSError("no more processes")
        process = FakeProcess(next(self._pids), spec.text())
        self.spawned.setdefault(spec.key, []).append(process)
        return process

    def adopt(self, lock_value: str) -> FakeProcess | None:
        return self.living.get(lock_value)


class World:
    def __init__(self, file: Path, client) -> None:
        self.file, self.client = file, client
        self.clock, self.launcher = FakeClock(), FakeLauncher()
        self.supervisor = self.another()
        self.fleet = Fleet(self.supervisor, wake=lambda: None)

    def another(self) -> Supervisor:
        return Supervisor(self.file, Store(self.client), self.launcher, self.clock, KEYS)

    def write(self, *keys: str, **intervals: int) -> None:
        workers = [{"key": key, "interval_sec": intervals.get(key, 900)} for key in (*keys, *intervals)]
        self.file.write_text(
            json.dumps({"strategy": "supervisor.strategy.pair:PairStrategy", "workers": workers})
        )

    def beat(self, key: str, **state) -> None:
        self.client.set(KEYS.heartbeat(key), round(self.clock.now() * 1000))
        self.client.set(KEYS.state(key), json.dumps({"status": "running", "error": None, **state}))

    def pass_time(self, seconds: float, *, beating: tuple[str, ...] = ()) -> None:
        """Let time pass as the main loop would, in turns no longer than the supervisor asks for."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            pause = self.supervisor.step()
            self.clock.advance(min(max(pause, 0.1), 5.0, end - self.clock.now()))
            for key in beating:
                self.beat(key)
        self.supervisor.step()

    def tries(self, key: str) -> int:
        return len(self.launcher.spawned.get(key, []))

    def process(self, key: str) -> FakeProcess:
        return self.launcher.spawned[key][-1]


@pytest.fixture
def world(tmp_path, valkey) -> World:
    world = World(tmp_path / "workers.yml", valkey)
    world.write("A", "B")
    return world


def test_one_process_per_key_and_the_set_of_workers(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    assert (world.tries("A"), world.tries("B")) == (1, 1)
    assert world.client.smembers("t:workers") == {"A", "B"}
    assert [s.phase for s in world.fleet.status_all()] == [Phase.READY, Phase.READY]


def test_a_crash_loop_is_tried_after_20_40_80_s_and_given_up_after_20(world):
    world.supervisor.begin()
    world.supervisor.step()
    at = []
    for _ in range(20):
        world.process("A").ended = "exited with 1"
        began, tries = world.clock.now(), world.tries("A")
        world.supervisor.step()
        status = world.fleet.status_one("A")
        if status.phase is Phase.FAILED:
            break
        assert status.phase is Phase.BACKING_OFF
        while world.tries("A") == tries:
            world.pass_time(1, beating=("B",))
        at.append((status.backoff, round(world.clock.now() - began)))
    assert [backoff for backoff, _ in at] == [20, 40, 80, 160] + [300] * 15
    assert all(backoff <= waited <= backoff + 1 for backoff, waited in at)
    world.pass_time(1000, beating=("B",))
    assert (world.tries("A"), world.fleet.status_one("A").failures) == (20, 20)
    assert world.tries("B") == 1

    world.fleet.start("A")
    world.supervisor.step()
    assert world.tries("A") == 21
    assert world.fleet.status_one("A").failures == 0


def test_a_worker_that_falls_silent_is_killed_and_respawned_with_backoff(world):
    world.supervisor.begin()
    world.pass_time(100, beating=("A", "B"))
    frozen = world.process("A")
    world.client.delete(KEYS.heartbeat("A"))  # what its TTL of 45 s does
    world.supervisor.step()
    assert frozen.signals == [signal.SIGKILL]
    world.pass_time(19, beating=("B",))
    assert world.tries("A") == 1
    world.pass_time(2, beating=("B",))
    assert world.tries("A") == 2


def test_a_worker_that_never_beats_has_60_s(world):
    world.supervisor.begin()
    world.pass_time(60, beating=("B",))
    assert world.process("A").signals == []
    world.pass_time(10, beating=("B",))
    assert world.process("A").signals == [signal.SIGKILL]


def test_the_flag_restarts_at_once_and_only_once(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    world.client.set(KEYS.restarting("A"), "1", px=60_000)
    world.pass_time(1, beating=("A", "B"))
    assert world.process("A") is not world.launcher.spawned["A"][0]
    world.pass_time(100, beating=("A", "B"))
    assert world.tries("A") == 2
    assert world.client.exists(KEYS.restarting("A")) == 0


def test_an_error_in_the_state_is_warned_about_once(world, caplog):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            world.beat("A", status="error", error="no candles")
            world.supervisor.step()
            world.clock.advance(10)
    assert [r.message for r in caplog.records] == ["A reports an error: no candles"]
    status = world.fleet.status_one("A")
    assert (status.phase, status.error) == (Phase.READY, "no candles")
    assert world.process("A").signals == []


def test_a_deaf_worker_is_killed_30_s_after_it_was_asked_to_leave(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    world.process("A").deaf = True
    world.fleet.restart("A")
    world.pass_time(29, beating=("A", "B"))
    assert world.process("A").signals == [signal.SIGTERM]
    world.pass_time(2, beating=("A", "B"))
    assert world.launcher.spawned["A"][0].signals == [signal.SIGTERM, signal.SIGKILL]
    assert world.tries("A") == 2


def test_an_emptied_server_kills_nobody(world):
    world.supervisor.begin()
    world.pass_time(200, beating=("A", "B"))
    world.client.flushall()
    world.pass_time(50)  # the workers are slow to come back
    world.pass_time(100, beating=("A", "B"))
    assert (world.tries("A"), world.tries("B")) == (1, 1)
    assert world.process("A").signals == []
    assert world.client.smembers("t:workers") == {"A", "B"}


def test_a_reload_stops_removed_starts_new_restarts_changed_and_leaves_the_rest(world):
    world.write("A", "B", "C")
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B", "C"))
    world.write("A", "D", B=60)
    world.supervisor.reload()
    world.pass_time(15, beating=("A", "B", "D"))
    assert {key: world.tries(key) for key in "ABCD"} == {"A": 1, "B": 2, "C": 1, "D": 1}
    assert world.launcher.spawned["C"][0].ended == "ended by SIGTERM"
    assert world.client.smembers("t:workers") == {"A", "B", "D"}


def test_a_key_that_comes_back_waits_for_its_old_process_to_leave(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    old = world.process("A")
    old.deaf = True
    world.write("B")
    world.supervisor.reload()
    world.supervisor.step()
    world.write("A", "B")
    world.supervisor.reload()
    world.pass_time(20, beating=("A", "B"))
    assert world.tries("A") == 1
    old.ended = "exited with 0"
    world.supervisor.step()
    assert world.tries("A") == 2


def test_a_broken_file_changes_nothing(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    world.file.write_text("workers: [{key: A}, {nokey: 1}]")
    with pytest.raises(Refused, match="nokey"):
        world.supervisor.reload()
    world.pass_time(30, beating=("A", "B"))
    assert (world.tries("A"), world.tries("B")) == (1, 1)


def test_a_stop_holds_under_the_next_supervisor_and_a_start_ends_it(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    world.fleet.stop("A")
    world.pass_time(100, beating=("B",))
    assert world.fleet.status_one("A").phase is Phase.STOPPED
    world.supervisor.lock.release()
    successor = world.another()
    successor.begin()
    successor.step()
    assert world.tries("A") == 1
    fleet = Fleet(successor, wake=lambda: None)
    with pytest.raises(Refused, match="start it instead"):
        fleet.restart("A")
    fleet.start("A")
    successor.step()
    assert world.tries("A") == 2
    with pytest.raises(UnknownKey):
        fleet.stop("Z")


def test_a_successor_adopts_same_replaces_changed_and_dismisses_removed(world):
    world.write("A", "B", "C")
    world.supervisor.begin()
    world.supervisor.step()
    for key in "ABC":
        world.client.set(KEYS.lock(key), f"lock of {key}")
        world.launcher.living[f"lock of {key}"] = world.process(key)
    world.supervisor.lock.release()
    world.write("A", B=60)
    successor = world.another()
    successor.begin()
    successor.step()
    assert world.process("A").signals == []
    assert world.launcher.spawned["B"][0].signals == [signal.SIGTERM]
    assert world.launcher.spawned["C"][0].signals == [signal.SIGTERM]
    del world.launcher.living["lock of B"], world.launcher.living["lock of C"]
    successor.step()
    assert {key: world.tries(key) for key in "ABC"} == {"A": 1, "B": 2, "C": 1}
    assert set(successor.slots) == {"A", "B"}


def test_the_second_supervisor_is_refused_and_a_replaced_one_leaves_the_workers_alone(world):
    world.supervisor.begin()
    world.supervisor.step()
    with pytest.raises(AlreadyRunning, match="another supervisor is running: pid"):
        world.another().begin()
    world.client.delete(KEYS.supervisor_lock)  # its TTL, while the first was frozen
    world.another().begin()
    world.clock.advance(61)
    world.process("A").ended = "exited with 1"
    with pytest.raises(LostLease):
        world.supervisor.step()
    assert world.tries("A") == 1
    assert world.process("B").signals == []


def test_a_process_that_cannot_be_started_is_a_failure_with_backoff(world):
    world.launcher.broken = True
    world.supervisor.begin()
    world.pass_time(15)
    status = world.fleet.status_one("A")
    assert (status.failures, status.last_exit) == (1, "could not be started: no more processes")
    world.launcher.broken = False
    world.pass_time(21)
    assert world.tries("A") == 1


def test_the_end_publishes_shutdown_waits_30_s_kills_and_releases_the_lock(world):
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    world.process("A").deaf = True
    channel = world.client.pubsub()
    channel.subscribe(KEYS.control)
    channel.get_message(timeout=5)
    began = world.clock.now()
    world.supervisor.end(wait=world.clock.advance)
    assert channel.get_message(timeout=5)["data"] == "SHUTDOWN"
    channel.close()
    assert world.clock.now() - began == pytest.approx(30)
    assert world.process("A").signals == [signal.SIGTERM, signal.SIGKILL]
    assert world.process("B").signals == [signal.SIGTERM]
    assert world.client.exists(KEYS.supervisor_lock, KEYS.workers) == 0
