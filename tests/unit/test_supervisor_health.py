"""The six health rules, on a clock that is only a number."""

from __future__ import annotations

import pytest

from supervisor.health import Act, Limits, Seen, Want, decide
from supervisor.timings import GIVE_UP_AFTER, Timings

LIMITS = Limits.of(Timings())
NOW = 10_000.0


def alive(**changes) -> Seen:
    return Seen(
        **{"want": Want.RUNNING, "alive": True, "spawned_at": NOW - 100, "heartbeat": NOW - 5, **changes}
    )


def gone(**changes) -> Seen:
    return Seen(**{"want": Want.RUNNING, "alive": False, "spawned_at": NOW - 100, **changes})


def test_a_key_that_never_ran_is_started():
    assert decide(gone(spawned_at=None), NOW, LIMITS).act is Act.SPAWN


def test_the_pauses_between_respawns_double_from_20_s_to_5_min_and_end_after_20_failures():
    now, failures, pauses = NOW, 0, []
    while True:
        verdict = decide(gone(failures=failures), now, LIMITS)
        assert verdict.act is Act.NOTHING
        failures = verdict.failures
        if verdict.retry_at is None:
            break
        pauses.append(verdict.retry_at - now)
        waiting = gone(failures=failures, retry_at=verdict.retry_at)
        assert decide(waiting, verdict.retry_at - 0.001, LIMITS).act is Act.NOTHING
        respawn = decide(waiting, verdict.retry_at, LIMITS)
        assert (respawn.act, respawn.failures) == (Act.SPAWN, failures)
        now = verdict.retry_at + 1
    assert pauses == [20, 40, 80, 160] + [300] * 15
    assert failures == GIVE_UP_AFTER == 20


def test_a_given_up_worker_stays_given_up_until_a_restart_is_asked_for():
    given_up = gone(failures=GIVE_UP_AFTER)
    assert decide(given_up, NOW + 1e6, LIMITS).act is Act.NOTHING
    verdict = decide(gone(failures=GIVE_UP_AFTER, restarting=True), NOW, LIMITS)
    assert (verdict.act, verdict.failures) == (Act.SPAWN, 0)


def test_the_restarting_flag_respawns_without_backoff():
    assert decide(gone(failures=3, retry_at=NOW + 80, restarting=True), NOW, LIMITS).act is Act.SPAWN


@pytest.mark.parametrize(("age", "act"), [(59.9, Act.NOTHING), (60.0, Act.NOTHING), (60.1, Act.KILL)])
def test_a_missing_heartbeat_kills_only_a_worker_older_than_60_s(age, act):
    assert decide(alive(spawned_at=NOW - age, heartbeat=None), NOW, LIMITS).act is act


def test_the_heartbeat_of_a_predecessor_proves_nothing():
    spawned = NOW - 61
    assert decide(alive(spawned_at=spawned, heartbeat=spawned - 1), NOW, LIMITS).act is Act.KILL


def test_silence_is_not_held_against_workers_while_the_store_was_away_or_emptied():
    silent = alive(spawned_at=NOW - 1000, heartbeat=None, trusted_since=NOW - 30)
    assert decide(silent, NOW, LIMITS).act is Act.NOTHING
    assert decide(silent, NOW + 31, LIMITS).act is Act.KILL


def test_a_healthy_heartbeat_forgets_failures():
    verdict = decide(alive(failures=7), NOW, LIMITS)
    assert (verdict.act, verdict.failures, verdict.retry_at) == (Act.NOTHING, 0, None)


def test_the_very_first_beat_does_not_forget_failures_so_that_a_crash_loop_ends():
    verdict = decide(alive(failures=7, spawned_at=NOW - 2, heartbeat=NOW - 1), NOW, LIMITS)
    assert (verdict.act, verdict.failures) == (Act.NOTHING, 7)


def test_an_error_in_the_state_is_a_warning_and_never_a_kill():
    verdict = decide(alive(error="no candles"), NOW, LIMITS)
    assert (verdict.act, verdict.warning) == (Act.NOTHING, "no candles")


def test_a_worker_that_was_asked_to_leave_has_30_s():
    assert decide(alive(asked_at=NOW - 29.9, restarting=True), NOW, LIMITS).act is Act.NOTHING
    assert decide(alive(asked_at=NOW - 30, restarting=True), NOW, LIMITS).act is Act.KILL


@pytest.mark.parametrize("want", [Want.STOPPED, Want.REMOVED])
def test_an_unwanted_worker_is_asked_to_leave_and_not_respawned(want):
    assert decide(alive(want=want), NOW, LIMITS).act is Act.ASK
    after = decide(gone(want=want, restarting=True), NOW, LIMITS)
    assert after.act is (Act.FORGET if want is Want.REMOVED else Act.NOTHING)


def test_a_restart_asks_a_living_worker_to_leave_first():
    assert decide(alive(restarting=True), NOW, LIMITS).act is Act.ASK
