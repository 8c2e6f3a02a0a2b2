"""What must hold where people trade. The broker's own book is the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.blueprint import EXIT_AFTER, MARK_TTL
from muster.brokers.port import NewOrder, OrderStatus
from sim.audit import Invariant
from sim.safety import OVERLAP_LEASE_S
from sim.store_world import SOCKET_TIMEOUT_S
from sim.workers import DRIFT

if TYPE_CHECKING:
    from sim.broker_world import BookOrder, SimBroker
    from sim.trading import Asked
    from sim.world import World

#: A worker that cannot renew ends itself when its own clock says that the mark is gone: on a slow clock that
#: is later than for the store. It looks once a second, after a beat that may time out; answers take a moment.
_EXIT_S = (EXIT_AFTER.total_seconds() + 1.0) / (1 - DRIFT) + SOCKET_TIMEOUT_S
SESSION_OVERLAP_S = _EXIT_S - MARK_TTL.total_seconds() + 3.0


class OrderOnce(Invariant):
    """Whatever fails, and whoever tries again, the market sees one order for one wish."""

    name = "no order is executed twice"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._ids: dict[tuple[str, str], str] = {}

    def placed(self, sender: SimBroker, order: NewOrder, known: BookOrder | None, sent_at: float) -> None:  # noqa: ARG002
        wish = (sender.ledger.user, str(order.qty))
        first = self._ids.setdefault(wish, order.client_order_id)
        if first != order.client_order_id:
            self.violated(f"{wish[0]}: one wish came as {first} and as {order.client_order_id}")


class OrderAsked(Invariant):
    """What may be at the broker is looked for there before it is sent again."""

    name = "no order is sent again unasked"

    def placed(self, sender: SimBroker, order: NewOrder, known: BookOrder | None, sent_at: float) -> None:
        if known is None or known.arrived > sent_at or self.world.store_world.lost:
            return
        if order.client_order_id not in sender.asked:
            self.violated(f"{order.client_order_id} was there for {sent_at - known.arrived:.1f} s")


class OrderUnderLease(Invariant):
    """Whoever sends an order or a cancel may act at that moment."""

    name = "no order is sent under a lost lease"

    def sending(self, sender: SimBroker, what: str) -> None:
        if sender.worker is not None and not sender.worker.may_act():
            self.violated(f"{sender.worker.name} sent {what} of {sender.ledger.user}")


class OrderTruth(Invariant):
    """In the end every accepted order says what the book says, or openly that nobody knows."""

    name = "every order has one truth"

    def end(self) -> None:
        trading = self.world.trading
        if trading is None:
            return
        for asked in trading.judged():
            if open_end := trading.open_end(asked):
                self.violated(f"{asked.order.client_order_id} {open_end}, and nobody looks any more")
            self._compare(asked)

    def _compare(self, asked: Asked) -> None:
        trading = self.world.trading
        assert trading is not None
        record = trading.record(asked)
        if record is None or record.verified != "verified":
            return
        order_id, book = asked.order.client_order_id, trading.broker.accounts[asked.user].book
        entry = book.get(order_id)
        said = (record.status, record.filled_qty)
        if entry is not None:
            if said != (entry.status.value, str(entry.filled)):
                self.violated(f"{order_id} is on record as {said}, in the book {entry.status} {entry.filled}")
        elif record.status not in (OrderStatus.CANCELLED, OrderStatus.REJECTED, OrderStatus.EXPIRED):
            self.violated(f"{order_id} is on record as {said}, and the broker never had it")


class OneSession(Invariant):
    """A user has one session at the broker; a successor's overlaps only as long as clocks may differ."""

    name = "broker sessions overlap within the bound"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sessions: dict[str, list[SimBroker]] = {}

    def connected(self, session: SimBroker) -> None:
        self._sessions.setdefault(session.ledger.user, []).append(session)
        bound = SESSION_OVERLAP_S + (OVERLAP_LEASE_S if self.world.store_world.lost else 0.0)
        self.world.loop.after(bound, lambda: self._judge(session))

    def _judge(self, session: SimBroker) -> None:
        """Is anybody still there who was there before?"""
        if not self._there(session):
            return
        mine = self._sessions[session.ledger.user]
        for older in mine[: mine.index(session)]:
            if self._there(older) and older.worker is not session.worker:
                assert older.worker is not None
                self.violated(f"{session.ledger.user}: {older.worker.name} is still connected")

    def _there(self, session: SimBroker) -> bool:
        """Connected, and held by no fault: what hangs cannot say goodbye."""
        worker = session.worker
        assert worker is not None
        held = max(worker.frozen_until, worker.held_until) + SOCKET_TIMEOUT_S > self.world.loop.now
        return not (session.closed or worker.dead or held)
