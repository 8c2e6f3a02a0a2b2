"""Command messages: what is taken, what is parked, and with which reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.commands import Action, Command, parse_command
from muster.errors import BadCommand
from muster.messages import MAX_BODY_CHARS
from muster.model import Cause
from tests.worlds import command

SENT = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def parse(body: str | dict[str, Any]) -> Command:
    text = body if isinstance(body, str) else json.dumps(body)
    return parse_command(text, message_id="m-1", sent_at=SENT)


def test_a_bare_message_sent_by_hand_gets_the_queues_id_and_time() -> None:
    bare = parse('{"action":"start","user_id":"u1"}')
    assert (bare.action, bare.user_id, bare.command_id, bare.issued_at) == (Action.START, "u1", "m-1", SENT)


def test_a_body_reads_back_as_the_command_it_was() -> None:
    for sent in (
        command("start", credentials_ref="users/u1/broker"),
        command("stop", reason="holiday"),
        command("restart", seen_epoch=7, cause=Cause.REPAIR, reason="its task has ended"),
    ):
        assert parse_command(sent.body(), message_id="m", sent_at=sent.issued_at) == sent


@pytest.mark.parametrize("user", ["u", "a.b_c@d:e-9", "x" * 128, "a..b", "-"])
def test_good_user_ids(user: str) -> None:
    assert parse({"action": "start", "user_id": user}).user_id == user


@pytest.mark.parametrize(
    "user",
    [
        "",
        "x" * 129,
        "a b",
        "a/b",
        "../../etc/passwd",
        "u\n",
        "u\x00",
        "ü",
        "u{1}",
        "u*",
        "\ud800",
        7,
        None,
        ["u"],
    ],
)
def test_bad_user_ids_are_refused_by_name(user: Any) -> None:
    with pytest.raises(BadCommand, match=r"user_id|body"):
        parse({"action": "start", "user_id": user})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 16_000, "not JSON"),
        ('{"a":' * 3_000, "not JSON"),
        ("9" * 5_000, "not JSON"),
        ("[]", "must be a JSON object, not list"),
        ("null", "must be a JSON object, not NoneType"),
        ('"start"', "must be a JSON object, not str"),
        ("x" * (MAX_BODY_CHARS + 1), "at most"),
        ("{}", "action"),
        ('{"action":"start"}', "user_id"),
        ('{"action":"claim","user_id":"u1"}', "action"),
        ('{"action":"START","user_id":"u1"}', "action"),
        ('{"action":"start","user_id":"u1","nonsense":1}', "nonsense: Extra inputs"),
        ('{"action":"start","user_id":"u1","version":2}', "version"),
        ('{"action":"start","user_id":"u1","issued_at":"yesterday"}', "issued_at"),
        ('{"action":"start","user_id":"u1","issued_at":"2026-11-01T12:00:00"}', "issued_at"),
        ('{"action":"start","user_id":"u1","issued_at":"2026-11-01T12:05:01Z"}', "future"),
        ('{"action":"start","user_id":"u1","issued_at":"9999-12-31T23:59:59-12:00"}', "issued_at"),
        ('{"action":"start","user_id":"u1","command_id":""}', "command_id"),
        ('{"action":"start","user_id":"u1","command_id":"a b"}', "command_id"),
        ('{"action":"start","user_id":"u1","credentials_ref":"a b; rm"}', "credentials_ref"),
        ('{"action":"stop","user_id":"u1","reason":"' + "x" * 201 + '"}', "reason"),
        ('{"action":"start","user_id":"u1","seen_epoch":3}', "cause repair or move"),
        ('{"action":"start","user_id":"u1","cause":"repair","seen_epoch":3}', "cause repair or move"),
        ('{"action":"restart","user_id":"u1","cause":"repair"}', "cause repair or move"),
        ('{"action":"restart","user_id":"u1","cause":"repair","seen_epoch":-1}', "seen_epoch"),
        ('{"action":"restart","user_id":"u1","cause":"repair","seen_epoch":NaN}', "seen_epoch|body"),
    ],
)
def test_what_can_never_work_is_refused_with_a_reason(body: str, reason: str) -> None:
    with pytest.raises(BadCommand, match=reason):
        parse(body)


def test_a_clock_a_little_ahead_is_believed() -> None:
    assert parse({"action": "start", "user_id": "u1", "issued_at": (SENT + timedelta(minutes=5)).isoformat()})


def test_the_oldest_time_there_is_is_only_old() -> None:
    old = parse({"action": "start", "user_id": "u1", "issued_at": "0001-01-01T00:00:00+14:00"})
    assert old.issued_at_ms < 0


def test_start_stop_start_are_three_messages_to_the_queue() -> None:
    sent = [command("start"), command("stop"), command("start")]
    assert len({c.dedup_id for c in sent}) == 3


def test_equal_command_ids_of_two_users_are_two_messages() -> None:
    assert command("start", "u1", command_id="x").dedup_id != command("start", "u2", command_id="x").dedup_id


def repair(seen_epoch: int, at: datetime) -> Command:
    return command("restart", seen_epoch=seen_epoch, cause=Cause.REPAIR, issued_at=at)


def test_an_event_and_a_sweep_that_see_one_loss_send_one_repair() -> None:
    assert repair(7, SENT).dedup_id == repair(7, SENT + timedelta(seconds=5)).dedup_id
    assert repair(7, SENT).dedup_id != repair(8, SENT).dedup_id


def test_a_second_loss_of_the_same_epoch_is_not_swallowed_as_a_repeat() -> None:
    """The first repair may have found its worker back ("active"); the queue forgets only after 5 minutes."""
    assert repair(7, SENT).dedup_id != repair(7, SENT + timedelta(minutes=1)).dedup_id
