"""A stand-in for the optional `ccxt` package: the same method names, arguments, fields and error tree as
ccxt 4.5, on an exchange in memory. It proves the adapter, not ccxt."""

from __future__ import annotations

import itertools
import time
from types import ModuleType


class BaseError(Exception): ...


class OperationFailed(BaseError): ...


class NetworkError(OperationFailed): ...


class ExchangeError(BaseError): ...


class AuthenticationError(ExchangeError): ...


class InsufficientFunds(ExchangeError): ...


class BadRequest(ExchangeError): ...


class OperationRejected(ExchangeError): ...


class InvalidOrder(ExchangeError): ...


class OrderNotFound(InvalidOrder): ...


class DuplicateOrderId(InvalidOrder): ...


class Venue:
    """What the exchange itself holds, beyond any one client of it."""

    def __init__(self) -> None:
        self.orders: dict[str, dict] = {}
        self.numbers = itertools.count(1)
        self.away = False
        self.created = 0


def stand_in(venue: Venue) -> ModuleType:
    """A module to put into sys.modules as `ccxt`, with one exchange class, `memory`."""

    class memory:
        id = "memory"

        def __init__(self, config: dict) -> None:
            self.config = config
            self.has = {"fetchOrder": True, "fetchOpenOrders": True, "fetchOrders": True}

        def _enter(self) -> None:
            if venue.away:
                raise NetworkError("memory GET https://exchange.invalid/?signature=canary")
            if self.config["secret"] != "good":
                raise AuthenticationError("invalid key")
            for order in venue.orders.values():  # what can be filled is filled by the time of the next call
                if order["status"] == "open" and order["type"] == "market":
                    now = int(time.time() * 1000)
                    order.update(
                        status="closed", filled=order["amount"], average=100.0, lastUpdateTimestamp=now
                    )

        def fetch_balance(self) -> dict:
            self._enter()
            return {"total": {"USDT": 1000.0}, "free": {"USDT": 900.0}}

        def create_order(self, symbol, type, side, amount, price=None, params=None) -> dict:
            self._enter()
            if amount <= 0:
                raise InvalidOrder("amount must be positive")
            if side == "buy" and amount > 1_000_000:
                raise InsufficientFunds("insufficient balance")
            number = str(next(venue.numbers))
            venue.created += 1
            now = int(time.time() * 1000)
            venue.orders[number] = {
                "id": number,
                "clientOrderId": (params or {}).get("clientOrderId"),
                "symbol": symbol,
                "type": type,
                "side": side,
                "amount": amount,
                "filled": 0.0,
                "average": None,
                "status": "open",
                "timestamp": now + int(number),
                "lastUpdateTimestamp": now,
                "lastTradeTimestamp": None,
            }
            return {"id": number}

        def cancel_order(self, id, symbol=None, params=None) -> dict:
            self._enter()
            if id not in venue.orders or venue.orders[id]["status"] != "open":
                raise OrderNotFound(id)
            venue.orders[id]["status"] = "canceled"
            return {"id": id}

        def fetch_order(self, id, symbol=None, params=None) -> dict:
            self._enter()
            return dict(venue.orders[id])

        def fetch_open_orders(self, symbol=None, since=None, limit=None, params=None) -> list[dict]:
            return [order for order in self.fetch_orders(symbol) if order["status"] == "open"]

        def fetch_orders(self, symbol=None, since=None, limit=None, params=None) -> list[dict]:
            self._enter()
            return [dict(order) for order in venue.orders.values() if order["symbol"] == symbol]

        def close(self) -> None: ...

    module = ModuleType("ccxt")
    for error in (
        BaseError, OperationFailed, NetworkError, ExchangeError, AuthenticationError, InsufficientFunds,
        BadRequest, OperationRejected, InvalidOrder, OrderNotFound, DuplicateOrderId,
    ):  # fmt: skip
        setattr(module, error.__name__, error)
    module.memory = memory
    return module
