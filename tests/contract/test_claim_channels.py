"""One contract for both ways a claim travels: the pool-claim queue and a Valkey list."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import redis
from botocore.config import Config
from moto import mock_aws

from local.valkey import EmbeddedValkey
from muster import keys, steps
from muster.claims import Claim, ClaimChannel, Delivery, SqsChannel, ValkeyChannel
from muster.errors import TryLater
from muster.store import Store


def claim(user: str = "u1") -> Claim:
    return Claim(user, 7, "v1", 1000, "c1", "", "start")


@dataclass
class Post:
    """A channel, and the way worker_control puts claims on it."""

    channel: ClaimChannel
    store: Store

    def send(self, *claims: Claim) -> list[Claim]:
        if self.channel.sends_with_reservation:
            for one in claims:
                body = one.to_json()
                assert self.store.one(steps.reserve_slot("p", one.claim_id, "v1", body)).reserved
        return self.channel.send(claims)

    def receive(self, timeout: float = 5) -> Delivery:
        delivery = self.channel.receive(timeout)
        assert delivery is not None
        return delivery


@pytest.fixture(params=["sqs", "valkey"])
def post(request: pytest.FixtureRequest, valkey: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    store = Store(valkey)
    for n in range(30):
        store.one(steps.pool_beat("p", f"w{n}", f"t{n}", "v1", "", "h"))
    if request.param == "valkey":
        yield Post(ValkeyChannel(valkey, "p", "w0"), store)
        return
    with mock_aws():
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        sqs = boto3.client("sqs", region_name="us-east-1")
        url = sqs.create_queue(QueueName="pool-claim", Attributes={"VisibilityTimeout": "10"})["QueueUrl"]
        yield Post(SqsChannel(sqs, url), store)


def test_what_is_sent_is_received_once(post: Post) -> None:
    assert post.send(claim()) == []
    delivery = post.receive()
    assert Claim.from_json(delivery.body) == claim()
    delivery.done()
    assert post.channel.receive(0.1) is None


def test_nothing_sent_is_nothing_received(post: Post) -> None:
    assert post.channel.receive(0.1) is None


def test_a_whole_batch_arrives(post: Post) -> None:
    sent = [claim(f"u{n}") for n in range(25)]
    assert post.send(*sent) == []
    got = [Claim.from_json(post.receive().body) for _ in sent]
    assert sorted(got, key=lambda c: c.user_id) == sorted(sent, key=lambda c: c.user_id)


def test_what_is_given_back_is_received_again_at_once(post: Post) -> None:
    post.send(claim())
    post.receive().give_back()
    assert Claim.from_json(post.receive().body) == claim()


def test_a_channel_that_is_away_says_try_later() -> None:
    gone = redis.Redis(port=1, socket_connect_timeout=1)
    with pytest.raises(TryLater):
        ValkeyChannel(gone, "p", "w").receive(0.1)
    sqs = boto3.client(
        "sqs",
        region_name="us-east-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(TryLater):
        SqsChannel(sqs, "http://127.0.0.1:1/q").receive(0.1)
    assert SqsChannel(sqs, "http://127.0.0.1:1/q").send([claim()]) == [claim()]


def test_entries_sqs_refuses_are_named_as_not_sent() -> None:
    class Refuses:
        def send_message_batch(self, Entries: list[dict[str, str]], **_: Any) -> dict[str, Any]:
            return {"Failed": [{"Id": Entries[1]["Id"]}]}

    sent = [claim(f"u{n}") for n in range(3)]
    assert SqsChannel(Refuses(), "q").send(sent) == [sent[1]]


def test_a_wake_ends_a_blocking_wait_and_is_meant_for_one_worker(valkey_server: EmbeddedValkey) -> None:
    mine, other = (valkey_server.client() for _ in range(2))
    mine.flushall()
    waiting = ValkeyChannel(mine, "p", "w1")
    answers: list[Delivery | None] = []
    thread = threading.Thread(target=lambda: answers.append(waiting.receive(30)))
    thread.start()
    deadline = time.monotonic() + 10
    while not other.client_list(_type="normal") or not any(
        c["cmd"] == "blpop" for c in other.client_list(_type="normal")
    ):
        assert time.monotonic() < deadline
    ValkeyChannel(other, "p", "w2").wake()
    assert thread.is_alive()
    ValkeyChannel(other, "p", "w1").wake()
    thread.join(10)
    assert answers == [None]
    assert 0 < other.ttl(keys.pool_wake("p", "w2")) <= 60  # a wake nobody reads is forgotten
    mine.close()
    other.close()


def test_a_wake_before_the_wait_is_not_lost(valkey: Any) -> None:
    channel = ValkeyChannel(valkey, "p", "w1")
    channel.wake()
    assert channel.receive(30) is None
