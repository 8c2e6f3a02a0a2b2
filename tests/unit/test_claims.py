"""A claim on the wire."""

from __future__ import annotations

import json

import pytest

from muster.claims import Claim
from muster.errors import BadCommand
from muster.model import Assignment, Cause, Via

CLAIM = Claim("u1", 1_800_000_000_000, "v1", 1_799_999_999_000, "c1", "users/u1/broker", "repair")


def test_a_claim_reads_back_as_it_was_written() -> None:
    assert Claim.from_json(CLAIM.to_json()) == CLAIM


def test_a_claim_names_where_the_credentials_are_and_never_what_they_are() -> None:
    assert set(json.loads(CLAIM.to_json())) == {
        "action", "v", "user_id", "epoch", "version", "issued_at", "command_id", "credentials_ref", "cause",
    }  # fmt: skip


def test_a_claim_becomes_what_a_worker_must_know() -> None:
    assert CLAIM.assignment() == Assignment(
        "u1", 1_800_000_000_000, Via.WARM, Cause.REPAIR, 1_799_999_999_000, "c1", "users/u1/broker"
    )


def test_one_epoch_has_one_claim_id_however_often_it_is_sent() -> None:
    assert CLAIM.claim_id == "u1/1800000000000"


def test_fields_of_a_later_version_of_the_code_are_no_harm() -> None:
    assert Claim.from_json(json.dumps(json.loads(CLAIM.to_json()) | {"colour": "green"})) == CLAIM


@pytest.mark.parametrize("missing", ["user_id", "epoch", "version", "issued_at", "command_id", "cause", "v"])
def test_a_claim_with_something_missing_is_none(missing: str) -> None:
    body = json.loads(CLAIM.to_json())
    del body[missing]
    with pytest.raises(BadCommand):
        Claim.from_json(json.dumps(body))


@pytest.mark.parametrize("wrong", [{"epoch": "many"}, {"cause": "boredom"}, {"issued_at": None}, {"v": 2}])
def test_a_claim_with_something_wrong_is_none(wrong: dict[str, object]) -> None:
    with pytest.raises(BadCommand):
        Claim.from_json(json.dumps(json.loads(CLAIM.to_json()) | wrong))
