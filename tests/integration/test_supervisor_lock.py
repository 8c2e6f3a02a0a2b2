"""Locks on a real server: who may take, keep and release one, and when a dead holder is seen as dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from muster.clock import FakeClock
from muster.store import Store
from worker.cycle_lock import Holder, Lock, name_holder, process_start

TTL = timedelta(seconds=60)


@pytest.fixture
def lock(valkey):
    def make(ttl: timedelta = TTL, clock: FakeClock | None = None) -> Lock:
        return Lock(Store(valkey), "t:lock", ttl, clock or FakeClock())

    return make


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def holder_of(pid: int) -> Holder:
    started = process_start(pid)
    assert started is not None
    return replace(Holder.me(), pid=pid, started=started)


def test_the_second_to_come_learns_who_holds_it(lock, valkey):
    first, second = lock(), lock()
    assert first.take() is None
    assert second.take() == first.value
    assert name_holder(first.value) == f"pid {os.getpid()} on {os.uname().nodename}"
    assert (first.held(), second.held()) == (True, False)
    assert 0 < valkey.pttl("t:lock") <= 60_000


def test_only_the_holder_renews_and_releases(lock, valkey):
    first, second = lock(), lock()
    first.take()
    assert second.renew() == first.value
    second.release()
    assert valkey.get("t:lock") == first.value
    valkey.pexpire("t:lock", 1000)
    assert first.renew() is None
    assert valkey.pttl("t:lock") > 50_000
    first.release()
    assert valkey.exists("t:lock") == 0


def test_a_lock_the_server_forgot_is_taken_again_unless_another_was_faster(lock, valkey):
    first, second = lock(), lock()
    first.take()
    valkey.flushall()
    assert first.renew() is None
    assert first.taken == 2
    valkey.flushall()
    second.take()
    assert first.renew() == second.value
    assert not first.held()


def test_a_holder_may_not_act_longer_than_its_ttl_on_its_own_clock(lock):
    clock = FakeClock()
    mine = lock(clock=clock)
    mine.take()
    clock.advance(59.9)
    assert mine.held()
    clock.advance(0.2)
    assert not mine.held()


def test_the_lock_of_a_dead_process_of_this_machine_is_taken_at_once(lock, valkey, sleeper):
    value = holder_of(sleeper.pid).value()
    valkey.set("t:lock", value, px=900_000)
    assert lock().take() == value
    sleeper.send_signal(signal.SIGSTOP)
    assert lock().take() == value, "a frozen process is not a dead one"
    sleeper.kill()
    deadline = time.monotonic() + 10
    while process_start(sleeper.pid) is not None:
        assert time.monotonic() < deadline
    assert lock().take() is None, "a zombie is dead, also before its parent has looked"


def test_a_reused_pid_is_not_taken_for_the_holder(lock, valkey, sleeper):
    holder = holder_of(sleeper.pid)
    valkey.set("t:lock", replace(holder, started=holder.started - 1).value(), px=900_000)
    assert lock().take() is None


@pytest.mark.parametrize("change", [{"boot": "another-boot"}, {"pid_namespace": "1"}])
def test_a_holder_nobody_here_can_see_keeps_its_lock_until_the_ttl_ends(lock, valkey, change):
    gone = replace(Holder.me(), pid=2**22 - 1, started=1)
    assert gone.dead
    elsewhere = replace(gone, host="elsewhere", **change).value()
    valkey.set("t:lock", elsewhere, px=300)
    successor = lock()
    assert successor.take() == elsewhere
    deadline = time.monotonic() + 10
    while successor.take() is not None:
        assert time.monotonic() < deadline
    assert successor.held()


def test_a_value_of_another_program_is_respected(lock, valkey):
    valkey.set("t:lock", "somebody")
    assert lock().take() == "somebody"
