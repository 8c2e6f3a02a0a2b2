"""Any history of one user's orders, against a model in which everybody tells the truth, but late and twice.

The broker's own story of an order only moves forward. The worker and the checks repeat parts of it in any
order; the record must always be the furthest of what was told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster import keys
from muster.brokers.port import NewOrder, Order, OrderStatus, OrderType, Side
from muster.order_steps import (
    SEND_WITHIN,
    Do,
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
)
from muster.store import Store
from tests.simulation.machines import STORES, client_of, of, run

SCRIPTS = of(
    "muster/lua",
    "accept_order",
    "begin_order",
    "cancel_order",
    "list_orders",
    "record_order",
    "unverified_order",
)
USER = "u1"
numbers = st.integers(0, 1)
wants = st.sampled_from(["running", "running", "running", "stopped"])
END = [OrderStatus.FILLED, OrderStatus.CANCELLED, OrderStatus.EXPIRED, OrderStatus.REJECTED]
moves = st.tuples(st.sampled_from(END), st.integers(0, 3), st.booleans())
#: Who tells, and how many parts ago what is told was true.
tellings = st.tuples(st.sampled_from(["worker", "check"]), st.integers(0, 3))


@dataclass
class Model:
    """One order: the broker's story of it, and how much of it was told."""

    key: int
    story: list[tuple[OrderStatus, int]] = field(default_factory=list)
    told: int = -1  #: the furthest part of the story that anybody has told
    waiting: str = "queued"  #: until something is told
    refused: bool = False
    old: bool = False
    verified: str = "unverified"
    looked_at: bool = False
    cancel_asked: bool = False

    @property
    def status(self) -> str:
        if self.told >= 0:
            return self.story[self.told][0].value
        return OrderStatus.REJECTED.value if self.refused else self.waiting

    @property
    def final(self) -> bool:
        return self.status in {status.value for status in END}


class OrdersMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.store.client.flushall()
        self.orders: dict[str, Model] = {}
        self.keys: dict[int, str] = {}
        self.epoch = 1
        self.inbox: list[tuple[str, str]] = []
        self.want, self.session = "", False
        self.accept(0, 1)
        self.somebody_wants("running", session=True)
        self.accept(0, 1)
        self.accept(1, 1)
        self.begin(0, behind=0)

    @rule(
        want=st.sampled_from(["running", "running", "stopped"]), session=st.sampled_from([True, True, False])
    )
    def somebody_wants(self, want: str, session: bool) -> None:
        self.want, self.session = want, session
        fields = {"want": want, "credentials_ref": "ref" if session else ""}
        self.store.client.hset(keys.desired(USER), mapping=fields)

    @rule(key=st.integers(0, 5), qty=st.sampled_from([1, 1, 2]))
    def accept(self, key: int, qty: int) -> None:
        order_id = f"o{len(self.orders)}"
        order = NewOrder(order_id, "SIM", Side.BUY, Decimal(qty), OrderType.LIMIT, Decimal(5))
        answer = self.store.one(accept_order(USER, order, f"key{key}"))
        if key in self.keys:
            first, _, kept = self.keys[key].partition(" ")
            assert answer == ("repeated" if kept == str(qty) else "other", first)
        elif self.want != "running":
            assert answer == ("refused", self.want)
        elif not self.session:
            assert answer == ("no_session",)
        else:
            assert answer == ("accepted", order_id)
            self.keys[key] = f"{order_id} {qty}"
            self.orders[order_id] = Model(key)
            self.inbox.append((Do.PLACE, order_id))

    @rule(n=numbers)
    def time_passes(self, n: int) -> None:
        if f"o{n}" in self.orders:
            long_ago = datetime.now(UTC) - SEND_WITHIN - timedelta(seconds=1)
            created = round(long_ago.timestamp() * 1000)
            self.store.client.hset(keys.order(USER, f"o{n}"), "created_at", created)
            self.orders[f"o{n}"].old = True

    @rule()
    def a_successor_starts(self) -> None:
        self.epoch += 1
        self.store.client.set(keys.epoch(USER), self.epoch)

    @rule(n=numbers, behind=st.sampled_from([0, 0, 0, 1]))
    def begin(self, n: int, behind: int) -> None:
        begun = self.store.one(begin_order(USER, f"o{n}", self.epoch - behind))
        order = self.orders.get(f"o{n}")
        current = int(self.store.client.get(keys.epoch(USER)) or 0)
        if current > self.epoch - behind:
            assert (begun.tag, begun.detail) == ("fenced", str(current))
        elif order is None:
            assert begun.tag == "unknown"
        elif order.status not in ("queued", "sending"):
            assert (begun.tag, begun.detail, begun.order) == ("known", order.status, None)
        else:
            assert begun.may_be_there == (order.waiting == "sending")
            assert begun.order is not None
            assert begun.order.client_order_id == f"o{n}"
            if order.old:
                assert begun.tag == "late"
                return
            assert begun.tag == ("resend" if order.waiting == "sending" else "send")
            order.waiting = "sending"

    @rule(n=numbers, moves=st.lists(moves, max_size=3), tellings=st.lists(tellings, max_size=4))
    def news(
        self, n: int, moves: list[tuple[OrderStatus, int, bool]], tellings: list[tuple[str, int]]
    ) -> None:
        """The broker goes on with its story; then the worker and the checks tell parts of it."""
        for end, filled, ends in moves:
            self.broker_moves(n, end, filled, ends)
        for who, back in tellings:
            (self.worker_tells if who == "worker" else self.check_tells)(n, back)
            self.the_record_is_the_furthest_that_was_told()

    def broker_moves(self, n: int, end: OrderStatus, filled: int, ends: bool) -> None:
        """Only what a worker has begun to send can be at the broker."""
        order = self.orders.get(f"o{n}")
        if order is None or order.waiting != "sending":
            return
        status, had = order.story[-1] if order.story else (OrderStatus.ACCEPTED, 0)
        if not order.story:
            order.story.append((status, had))
        elif status not in END:
            more = max(had, filled)
            order.story.append((end, more) if ends else (OrderStatus.PARTIAL, more))

    def said(self, n: int, order: Model, part: int) -> Order:
        status, filled = order.story[part]
        at = datetime.fromtimestamp(1_800_000_000 + part, UTC)
        return Order(f"o{n}", f"b{n}", "SIM", Side.BUY, OrderType.LIMIT, Decimal(3), Decimal(filled),
                     Decimal(5) if filled else None, status, at, at)  # fmt: skip

    def worker_tells(self, n: int, back: int) -> None:
        order = self.orders.get(f"o{n}")
        if order is None or len(order.story) <= back:
            return
        part = len(order.story) - 1 - back
        answer = self.store.one(report_order(USER, self.said(n, order, part)))
        honest = answer[0] in ("recorded", "older") or (answer[0] == "differs" and order.refused)
        assert honest, "the truth contradicts nothing but a refusal"
        told, order.told = order.told, self.further(order, part)
        if order.told != told and order.final and order.looked_at and order.verified == "unverified":
            self.inbox.append((Do.CHECK, f"o{n}"))

    @rule(n=numbers)
    def worker_is_refused(self, n: int) -> None:
        """The broker says no to one attempt; another may have got there."""
        order = self.orders.get(f"o{n}")
        if order is None or order.waiting != "sending":
            return
        self.store.one(report_refused(USER, f"o{n}", OrderStatus.REJECTED, "no money"))
        order.refused = order.refused or not order.final

    def check_tells(self, n: int, back: int) -> None:
        """`back` parts old: two checks of one order may cross."""
        order = self.orders.get(f"o{n}")
        if order is None:
            assert self.store.one(record_check(USER, f"o{n}", None, "unverified")) == ("unknown",)
            return
        part = len(order.story) - 1 - back
        if part < 0:
            if order.told >= 0:
                return  # nobody has it and somebody had it: not in this broker's story
            answer = self.store.one(record_check(USER, f"o{n}", None, "unverified", "not there"))
            assert answer == ("settled" if order.final else "older",)
            self.verify(order, "verified" if order.final else "unverified")
            return
        status, _ = order.story[part]
        verified = "verified" if status in END else "open"
        answer = self.store.one(record_check(USER, f"o{n}", self.said(n, order, part), verified))
        assert answer[0] in ("recorded", "older") or (answer[0] == "differs" and order.refused)
        order.told = self.further(order, part)
        self.verify(order, verified)

    def further(self, order: Model, part: int) -> int:
        """The story is told in any order; what counts is an end, then how much is filled."""

        def rank(number: int) -> tuple[bool, int]:
            status, filled = order.story[number]
            return status in END, filled

        return part if order.told < 0 or rank(part) > rank(order.told) else order.told

    def verify(self, order: Model, verified: str) -> None:
        order.looked_at = True
        if not (order.verified == "verified" and order.final):
            order.verified = verified

    @rule(n=numbers)
    def a_look_fails(self, n: int) -> None:
        order = self.orders.get(f"o{n}")
        answer = self.store.one(note_unverified(USER, f"o{n}", "away"))
        if order is None:
            assert answer == ("unknown",)
        elif order.verified == "verified":
            assert answer == ("verified",)
        else:
            assert answer == ("noted",)
            order.verified, order.looked_at = "unverified", True

    @rule(n=numbers)
    def cancel(self, n: int) -> None:
        answer = self.store.one(cancel_order(USER, f"o{n}"))
        order = self.orders.get(f"o{n}")
        if order is None:
            assert answer == ("unknown",)
        elif order.final:
            assert answer == ("ended", order.status)
        elif order.status == "queued":
            assert answer == ("cancelled",)
            order.waiting, order.verified = "cancelled", "verified"
        elif self.want != "running":
            assert answer == ("refused", self.want)
        else:
            assert answer == ("asked",)
            if not order.cancel_asked:
                self.inbox.append((Do.CANCEL, f"o{n}"))
            order.cancel_asked = True

    @invariant()
    def the_record_is_the_furthest_that_was_told(self) -> None:
        for order_id, order in self.orders.items():
            record = self.store.one(read_order(USER, order_id))
            assert record is not None
            assert (record.status, record.final) == (order.status, order.final)
            assert record.verified.partition(":")[0] == order.verified
            if order.told >= 0:
                assert record.filled_qty == str(order.story[order.told][1])

    @invariant()
    def what_may_be_open_at_the_broker_is_known_as_open(self) -> None:
        begun = {name for name, order in self.orders.items() if order.waiting == "sending"}
        expected = {name for name in begun if not self.orders[name].final}
        assert self.store.one(open_order_ids(USER)) == expected

    @invariant()
    def every_request_is_in_the_inbox_once_and_in_order(self) -> None:
        entries = self.store.one(read_inbox(USER, "0-0", timedelta(milliseconds=1)))
        assert [(entry.do, entry.order_id) for entry in entries] == self.inbox

    @rule(limit=st.integers(1, 4))
    def pages_hold_every_order_once(self, limit: int) -> None:
        seen: list[str] = []
        while len(page := self.store.one(list_orders(USER, seen[-1] if seen else "", limit))) > 1:
            seen += page[1:]
        assert sorted(seen) == sorted(self.orders)
        assert self.store.one(list_orders(USER, "nobody", limit)) == ("gone",)


@pytest.mark.parametrize(("kind", "examples"), STORES)
def test_every_history_of_the_order_scripts_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    store = Store(client_of(kind, request))
    run(lambda: OrdersMachine(store), examples, steps=40, scripts=SCRIPTS)
