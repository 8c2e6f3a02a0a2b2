"""The worker's view of its lease: 25 s to stop acting, 30 s to be gone, measured from before the renewal."""

from __future__ import annotations

import pytest

from muster.clock import FakeClock
from muster.errors import LostLease
from worker.lease import Lease


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


def test_nobody_acts_before_the_first_renewal(clock: FakeClock) -> None:
    lease = Lease(clock)
    assert not lease.may_act()
    lease.renewed(clock.monotonic())
    assert lease.may_act()  # asking too early has not ended it


def test_it_acts_until_25_s_and_is_over_at_30_s(clock: FakeClock) -> None:
    lease = Lease(clock)
    lease.renewed(clock.monotonic())
    clock.advance(24.999)
    assert lease.may_act()
    clock.advance(0.001)
    assert not lease.may_act()
    assert lease.ended == ""
    with pytest.raises(LostLease, match="not been renewed"):
        lease.require()
    clock.advance(5)
    assert lease.ended == "the mark could not be renewed in time"


def test_a_renewal_counts_from_before_it_was_sent(clock: FakeClock) -> None:
    lease = Lease(clock)
    sent_at = clock.monotonic()
    clock.advance(20)  # the answer took that long
    lease.renewed(sent_at)
    clock.advance(5)
    assert not lease.may_act()


def test_an_answer_that_overtook_another_does_not_shorten_the_lease(clock: FakeClock) -> None:
    lease = Lease(clock)
    lease.renewed(1000)
    lease.renewed(990)
    assert lease.seconds_left == 30


def test_a_renewal_in_time_lets_it_act_again(clock: FakeClock) -> None:
    lease = Lease(clock)
    lease.renewed(clock.monotonic())
    clock.advance(27)
    assert not lease.may_act()
    lease.renewed(clock.monotonic())
    assert lease.may_act()
    lease.require()


def test_there_is_no_way_back_from_the_end(clock: FakeClock) -> None:
    lease = Lease(clock)
    lease.renewed(clock.monotonic())
    lease.end("fenced 7")
    lease.end("something later")
    lease.renewed(clock.monotonic())
    assert not lease.may_act()
    assert lease.ended == "fenced 7"


def test_a_lease_seen_to_be_over_stays_over(clock: FakeClock) -> None:
    lease = Lease(clock)
    lease.renewed(clock.monotonic())
    clock.advance(30)
    assert lease.ended
    lease.renewed(clock.monotonic())  # a late answer
    assert not lease.may_act()
