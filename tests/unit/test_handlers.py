"""The parts of the handlers that need no queue: wiring, waking, coming back, sending."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from lambdas import wiring
from muster.claims import SqsChannel, ValkeyChannel
from muster.errors import TryLater
from muster.functions import invoke
from muster.maintenance import Batch
from muster.queues import SqsCommands, come_back_after
from muster.settings import Settings
from tests.worlds import command

AWAY = EndpointConnectionError(endpoint_url="https://sqs")


class Refusing:
    """Any AWS call fails."""

    def __getattr__(self, _: str) -> Any:
        def call(**__: Any) -> Any:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "Invoke")

        return call


def test_a_pool_that_cannot_be_woken_fails_nobodys_start() -> None:
    wiring._wake(Refusing(), "pool_manager", {})


def test_a_batch_that_cannot_be_invoked_is_seen() -> None:
    with pytest.raises(TryLater, match="maintenance_worker could not be invoked"):
        invoke(Refusing(), "maintenance_worker", {"batch": {"run_id": Batch("r", 0, (1,)).run_id}})


def test_the_claim_channel_is_chosen_by_its_setting() -> None:
    assert isinstance(wiring.claim_channel(Settings(claim_channel="sqs"), None, None), SqsChannel)
    assert isinstance(wiring.claim_channel(Settings(claim_channel="valkey"), None, None), ValkeyChannel)


class RecordingSqs:
    """Keeps the batches; refuses what it is told to."""

    def __init__(self, failed: list[dict[str, str]] | None = None) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.failed = failed or []

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.batches.append(Entries)
        return {"Failed": self.failed} if self.failed else {}

    def change_message_visibility_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> None:
        self.batches.append(Entries)


def test_commands_go_in_tens_grouped_by_user() -> None:
    sqs = RecordingSqs()
    SqsCommands(sqs, "q").send([command("start", f"u{n}") for n in range(23)])
    assert [len(batch) for batch in sqs.batches] == [10, 10, 3]
    assert sqs.batches[2][2]["MessageGroupId"] == "u22"
    assert len({entry["MessageDeduplicationId"] for batch in sqs.batches for entry in batch}) == 23


def test_a_command_the_queue_did_not_take_is_an_error() -> None:
    with pytest.raises(TryLater, match="refused 1 commands"):
        SqsCommands(RecordingSqs([{"Id": "0", "Message": "throttled"}]), "q").send([command("start")])
    with pytest.raises(TryLater, match="took no command"):
        SqsCommands(Refusing(), "q").send([command("start")])


def test_coming_back_sooner_is_best_effort_and_in_tens() -> None:
    sqs = RecordingSqs()
    come_back_after(sqs, "q", [f"h{n}" for n in range(12)], timedelta(seconds=5))
    assert [len(batch) for batch in sqs.batches] == [10, 2]
    assert {entry["VisibilityTimeout"] for batch in sqs.batches for entry in batch} == {5}
    come_back_after(Refusing(), "q", ["h"], timedelta(seconds=5))  # they come back with the timeout
