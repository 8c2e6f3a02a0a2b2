"""Deliberate bugs of sessions and orders; see `sim/mutants.py`."""

from __future__ import annotations

from sim.mutants import Mutant

_PLACE = "worker.inbox:Inbox._place"

ORDER_MUTANTS = (
    Mutant(
        "send an order without writing ahead",
        "begin_order.lua",
        "redis.call('HSET', KEYS[1], 'status', 'sending')",
        "",
    ),
    Mutant(
        "send again without asking the broker",
        _PLACE,
        "if begun.may_be_there and",
        "if False and",
        seed=315,
    ),
    Mutant(
        "a new id for every attempt",
        _PLACE,
        "self._broker.place(begun.order)",
        "self._broker.place(__import__('dataclasses').replace("
        "begun.order, client_order_id=f'{order_id}-{self._ctx.lease.seconds_left}'))",
    ),
    Mutant("no question to the lease before an order", _PLACE, "self._ctx.lease.require()", ""),
    Mutant(
        "cancel here what has gone to the broker",
        "cancel_order.lua",
        "if order.status == 'queued' then",
        "if order.status ~= 'filled' then",
    ),
    Mutant(
        "take the request out before its check is sent",
        "worker.inbox:Inbox.send_checks",
        "            self._send(checks)\n",
        "            self._settle(*batch)\n            self._send(checks)\n",
        seed=478,
    ),
    Mutant(
        "a check that writes verified without comparing",
        "record_order.lua",
        "if newer then",
        "if newer and not by_check then",
    ),
    Mutant(
        "a record that goes backwards",
        "record_order.lua",
        "newer = final > known_final or (final == known_final and filled > known_filled)",
        "newer = true",
        seed=1225,
    ),
    Mutant(
        "one look at an open order is enough",
        "muster.orders:_outcome",
        "if order is not None and order.status.final:",
        "if order is not None:",
    ),
    Mutant(
        "a check that failed is done",
        "lambdas.order_tasks.handler:_check_group",
        'return looks, {record["messageId"]: _patient(later, record)}',
        "return looks, {}",
    ),
    Mutant(
        "stay connected when the lease has run out",
        "worker.lease:Lease.ended",
        "if not self._ended and",
        "if False and",
        seed=305,
    ),
)
