"""The atomic steps of an order, on fakeredis, on the real server and on a real one-node cluster."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from muster import keys, steps
from muster.brokers.port import OrderStatus
from muster.order_steps import (
    INBOX_MOST,
    SEND_WITHIN,
    Entry,
    accept_order,
    begin_order,
    cancel_order,
    list_orders,
    note_unverified,
    open_order_ids,
    read_inbox,
    read_order,
    record_check,
    report_order,
    report_refused,
    settle_entries,
)
from muster.steps import ms
from muster.store import Store
from tests.order_stand import accept, make_older, new, record, told, wanted

NO_WAIT = timedelta(milliseconds=1)


def inbox(store: Store, after: str = "0-0") -> list[Entry]:
    return store.one(read_inbox("u1", after, NO_WAIT))


def sent(store: Store, order_id: str = "o1") -> int:
    """An order that a worker has begun to send; the worker's epoch."""
    epoch = wanted(store).epoch
    accept(store, order_id)
    assert store.one(begin_order("u1", order_id, epoch)).tag == "send"
    return epoch


def test_an_accepted_order_is_on_record_and_in_the_inbox(any_store: Store) -> None:
    wanted(any_store)
    accept(any_store, "o1")
    found = record(any_store, "o1")
    assert (found.status, found.final, found.verified, found.symbol) == (
        "queued",
        False,
        "unverified",
        "AAPL",
    )
    assert [(entry.do, entry.order_id) for entry in inbox(any_store)] == [("place", "o1")]


def test_an_order_for_a_user_nobody_wants_running_is_refused(any_store: Store) -> None:
    assert any_store.one(accept_order("u1", new("o1"))) == ("refused", "")
    wanted(any_store)
    any_store.one(steps.begin_stop("u1", 2_000, "stop"))
    assert any_store.one(accept_order("u1", new("o1"))) == ("refused", "stopped")
    assert inbox(any_store) == []
    assert any_store.one(read_order("u1", "o1")) is None


def test_an_order_for_a_worker_without_credentials_is_refused(any_store: Store) -> None:
    wanted(any_store, credentials_ref="")
    assert any_store.one(accept_order("u1", new("o1"))) == ("no_session",)


def test_a_repeat_with_the_same_key_is_the_same_order_and_another_order_is_told_apart(
    any_store: Store,
) -> None:
    wanted(any_store)
    assert any_store.one(accept_order("u1", new("o1"), "key")) == ("accepted", "o1")
    assert any_store.one(accept_order("u1", new("o2"), "key")) == ("repeated", "o1")
    assert any_store.one(accept_order("u1", new("o3", qty="11"), "key")) == ("other", "o1")
    assert [entry.order_id for entry in inbox(any_store)] == ["o1"]


def test_a_repeat_is_recognised_after_the_user_was_stopped(any_store: Store) -> None:
    wanted(any_store)
    any_store.one(accept_order("u1", new("o1"), "key"))
    any_store.one(steps.begin_stop("u1", 2_000, "stop"))
    assert any_store.one(accept_order("u1", new("o2"), "key")) == ("repeated", "o1")


def test_an_inbox_that_is_full_takes_no_more(any_store: Store) -> None:
    wanted(any_store)
    for number in range(INBOX_MOST):
        any_store.client.xadd(keys.inbox("u1"), {"do": "place", "order_id": f"x{number}"})
    assert any_store.one(accept_order("u1", new("o1"))) == ("full", str(INBOX_MOST))


def test_the_inbox_is_read_in_order_from_where_the_reader_was(any_store: Store) -> None:
    wanted(any_store)
    for name in ("o1", "o2", "o3"):
        accept(any_store, name)
    first, *_ = inbox(any_store)
    assert [entry.order_id for entry in inbox(any_store, first.entry_id)] == ["o2", "o3"]
    any_store.one(settle_entries("u1", [first.entry_id]))
    assert [entry.order_id for entry in inbox(any_store)] == ["o2", "o3"]


def test_sending_is_written_ahead_and_a_second_begin_knows_of_the_first(any_store: Store) -> None:
    epoch = wanted(any_store).epoch
    accept(any_store, "o1")
    first = any_store.one(begin_order("u1", "o1", epoch))
    assert (first.tag, first.order, first.may_be_there) == ("send", new("o1"), False)
    assert record(any_store, "o1").status == "sending"
    again = any_store.one(begin_order("u1", "o1", epoch + 1))
    assert (again.tag, again.order, again.may_be_there) == ("resend", new("o1"), True)


def test_a_fenced_worker_begins_nothing(any_store: Store) -> None:
    epoch = wanted(any_store).epoch
    accept(any_store, "o1")
    any_store.one(steps.begin_stop("u1", 2_000, "stop"))
    assert any_store.one(begin_order("u1", "o1", epoch)).tag == "fenced"
    assert record(any_store, "o1").status == "queued"


def test_an_executed_order_is_not_begun_again(any_store: Store) -> None:
    epoch = sent(any_store)
    any_store.one(report_order("u1", told("o1", "accepted")))
    again = any_store.one(begin_order("u1", "o1", epoch))
    assert (again.tag, again.detail, again.order) == ("known", "accepted", None)


@pytest.mark.parametrize("begun_before", [False, True])
def test_an_order_that_waited_too_long_is_late(any_store: Store, begun_before: bool) -> None:
    epoch = wanted(any_store).epoch
    accept(any_store, "o1")
    if begun_before:
        any_store.one(begin_order("u1", "o1", epoch))
    make_older(any_store, "o1", ms(SEND_WITHIN) + 1)
    late = any_store.one(begin_order("u1", "o1", epoch))
    assert (late.tag, late.may_be_there) == ("late", begun_before)
    any_store.one(report_refused("u1", "o1", OrderStatus.EXPIRED, "too late"))
    found = record(any_store, "o1")
    assert (found.status, found.final, found.reason) == ("expired", True, "too late")


def test_an_unknown_order_is_never_begun_or_recorded(any_store: Store) -> None:
    assert any_store.one(begin_order("u1", "o1", 1)).tag == "unknown"
    assert any_store.one(report_order("u1", told("o1", "filled", "10"))) == ("unknown",)
    assert any_store.one(record_check("u1", "o1", None, "unverified")) == ("unknown",)
    assert any_store.one(read_order("u1", "o1")) is None


STORY = (("accepted", "0"), ("partial", "4"), ("partial", "7"), ("filled", "10"))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_updates_in_any_order_and_twice_end_in_one_truth(any_store: Store, order: tuple[int, ...]) -> None:
    sent(any_store)
    for number in (*order, *order):
        any_store.one(report_order("u1", told("o1", *STORY[number])))
    found = record(any_store, "o1")
    assert (found.status, found.filled_qty, found.average_price, found.final) == (
        "filled",
        "10",
        "101.5",
        True,
    )
    assert (found.reported, found.differs) == ("filled", None)


def test_an_order_is_in_the_open_set_from_its_sending_to_its_end(any_store: Store) -> None:
    sent(any_store)
    assert any_store.one(open_order_ids("u1")) == {"o1"}
    any_store.one(report_order("u1", told("o1", "accepted")))
    assert any_store.one(open_order_ids("u1")) == {"o1"}
    any_store.one(report_order("u1", told("o1", "filled", "10")))
    assert any_store.one(open_order_ids("u1")) == set()


@pytest.mark.parametrize("end", ["filled", "cancelled", "rejected", "expired"])
def test_a_check_verifies_an_end_and_repeats_change_nothing(any_store: Store, end: str) -> None:
    sent(any_store)
    filled = "10" if end == "filled" else "3"
    any_store.one(report_order("u1", told("o1", end, filled)))
    assert any_store.one(record_check("u1", "o1", told("o1", end, filled), "verified")) == ("recorded",)
    first = record(any_store, "o1")
    assert (first.status, first.verified, first.differs) == (end, "verified", None)
    assert any_store.one(record_check("u1", "o1", told("o1", end, filled), "verified")) == ("recorded",)
    assert record(any_store, "o1").status == end


def test_an_older_answer_of_the_broker_does_not_undo_a_newer_report(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", "filled", "10")))
    assert any_store.one(record_check("u1", "o1", told("o1", "partial", "4"), "open")) == ("older",)
    found = record(any_store, "o1")
    assert (found.status, found.verified, found.differs) == ("filled", "open", None)


def test_a_worker_that_is_only_behind_does_not_differ(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", "accepted")))
    assert any_store.one(record_check("u1", "o1", told("o1", "filled", "10"), "verified")) == ("recorded",)
    any_store.one(report_order("u1", told("o1", "filled", "10")))
    assert record(any_store, "o1").differs is None


@pytest.mark.parametrize(
    ("reported", "truth"),
    [
        (("filled", "10"), ("cancelled", "4")),
        (("partial", "7"), ("cancelled", "4")),
        (("cancelled", "4"), ("cancelled", "6")),
    ],
)
def test_the_broker_wins_over_the_worker_and_the_difference_is_shown(
    any_store: Store, reported: tuple[str, str], truth: tuple[str, str]
) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", *reported)))
    seen = any_store.one(record_check("u1", "o1", told("o1", *truth), "verified"))
    assert seen == ("differs", " ".join(reported))
    assert any_store.one(record_check("u1", "o1", told("o1", *truth), "verified"))[0] == "recorded"
    found = record(any_store, "o1")
    assert (found.status, found.filled_qty, found.differs) == (*truth, " ".join(reported))


def test_a_refused_order_that_the_broker_holds_after_all_is_found_by_the_check(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_refused("u1", "o1", OrderStatus.REJECTED, "no money"))
    assert record(any_store, "o1").final
    assert any_store.one(record_check("u1", "o1", told("o1", "accepted"), "open"))[0] == "differs"
    found = record(any_store, "o1")
    assert (found.status, found.final, found.differs) == ("accepted", False, "rejected 0")
    assert any_store.one(open_order_ids("u1")) == {"o1"}


def test_a_refused_order_that_the_broker_does_not_have_is_settled(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_refused("u1", "o1", OrderStatus.REJECTED, "no money"))
    assert any_store.one(record_check("u1", "o1", None, "unverified", "not there")) == ("settled",)
    found = record(any_store, "o1")
    assert (found.status, found.verified, found.reason) == ("rejected", "verified", "no money")


def test_a_reported_order_that_the_broker_does_not_have_differs(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", "accepted")))
    assert any_store.one(record_check("u1", "o1", None, "unverified", "not there"))[0] == "differs"
    assert record(any_store, "o1").verified == "unverified: not there"


def test_a_failed_look_is_visible_until_the_next_one_that_works(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", "filled", "10")))
    any_store.one(note_unverified("u1", "o1", "the broker is away"))
    assert record(any_store, "o1").verified == "unverified: the broker is away"
    any_store.one(record_check("u1", "o1", told("o1", "filled", "10"), "verified"))
    any_store.one(note_unverified("u1", "o1", "the broker is away"))
    assert record(any_store, "o1").verified == "verified"


def test_an_order_cancelled_before_it_was_sent_is_never_sent(any_store: Store) -> None:
    epoch = wanted(any_store).epoch
    accept(any_store, "o1")
    any_store.one(steps.begin_stop("u1", 2_000, "stop"))  # also without a worker
    assert any_store.one(cancel_order("u1", "o1")) == ("cancelled",)
    assert any_store.one(begin_order("u1", "o1", epoch + 10**9)).tag == "known"
    found = record(any_store, "o1")
    assert (found.status, found.final, found.verified) == ("cancelled", True, "verified")


def test_a_sent_order_is_cancelled_by_the_worker_which_is_asked_once(any_store: Store) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", "accepted")))
    assert any_store.one(cancel_order("u1", "o1")) == ("asked",)
    assert any_store.one(cancel_order("u1", "o1")) == ("asked",)
    assert [entry.do for entry in inbox(any_store)] == ["place", "cancel"]
    any_store.one(report_order("u1", told("o1", "cancelled", "4")))
    assert any_store.one(cancel_order("u1", "o1")) == ("ended", "cancelled")
    assert any_store.one(cancel_order("u1", "o9")) == ("unknown",)


def test_a_sent_order_of_a_stopped_user_cannot_be_cancelled(any_store: Store) -> None:
    sent(any_store)
    any_store.one(steps.begin_stop("u1", 2_000, "stop"))
    assert any_store.one(cancel_order("u1", "o1")) == ("refused", "stopped")


def test_pages_do_not_shift_when_orders_come_in(any_store: Store) -> None:
    wanted(any_store)
    for number in range(5):
        accept(any_store, f"o{number}")
        any_store.client.zadd("order:index:{u1}", {f"o{number}": 10**13 + number})
    assert any_store.one(list_orders("u1", "", 2)) == ("page", "o4", "o3")
    accept(any_store, "new")
    any_store.client.zadd("order:index:{u1}", {"new": 10**13 + 9})
    assert any_store.one(list_orders("u1", "o3", 2)) == ("page", "o2", "o1")
    assert any_store.one(list_orders("u1", "o1", 2)) == ("page", "o0")
    assert any_store.one(list_orders("u1", "nobody", 2)) == ("gone",)


def checks_asked_for(store: Store) -> list[str]:
    return [entry.order_id for entry in inbox(store) if entry.do == "check"]


@pytest.mark.parametrize("gave_up", ["horizon", "dead letter"])
def test_an_end_after_the_last_look_asks_for_one_more_check_and_a_repeat_for_none(
    any_store: Store, gave_up: str
) -> None:
    sent(any_store)
    any_store.one(report_order("u1", told("o1", "accepted")))
    if gave_up == "horizon":
        any_store.one(record_check("u1", "o1", told("o1", "accepted"), "unverified", "not final"))
    else:
        any_store.one(note_unverified("u1", "o1", "the broker is away"))
    any_store.one(report_order("u1", told("o1", "partial", "4")))
    assert checks_asked_for(any_store) == []
    for _ in range(2):
        any_store.one(report_order("u1", told("o1", "filled", "10")))
    assert checks_asked_for(any_store) == ["o1"]


def test_an_end_that_a_check_will_see_or_has_seen_asks_for_none(any_store: Store) -> None:
    sent(any_store)
    for name in ("not-looked-at", "looked-at", "told-by-a-check"):
        accept(any_store, name)
        any_store.one(report_order("u1", told(name, "accepted")))
    any_store.one(record_check("u1", "looked-at", told("looked-at", "accepted"), "open"))
    any_store.one(note_unverified("u1", "told-by-a-check", "the broker is away"))
    any_store.one(record_check("u1", "told-by-a-check", told("told-by-a-check", "filled", "10"), "verified"))
    for name in ("not-looked-at", "looked-at", "told-by-a-check"):
        any_store.one(report_order("u1", told(name, "filled", "10")))
    assert checks_asked_for(any_store) == []
