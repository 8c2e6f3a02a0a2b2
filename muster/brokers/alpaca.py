"""The Alpaca trading API, thin: one HTTP connection, one websocket, no SDK.

The official SDK costs a process 98 MB and 1.1 s, has no HTTP timeout and repeats POSTs.
"""

from __future__ import annotations

import json
import ssl
import threading
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlencode

from websockets.exceptions import InvalidStatus, WebSocketException

from muster.brokers.backoff import Backoff
from muster.brokers.port import (
    Account,
    BadCredentials,
    BrokerAway,
    Credentials,
    NewOrder,
    Opened,
    Order,
    OrderRejected,
    OrderStatus,
    OrderType,
    Side,
    SlotTaken,
    Update,
)
from muster.brokers.rest import CONNECT_TIMEOUT, READ_TIMEOUT, Answer, RestClient
from muster.brokers.websocket import WebSocket
from muster.clock import Clock
from muster.errors import MusterError

LIVE_URL = "https://api.alpaca.markets"

#: Most orders in one answer (a limit of the API).
PAGE = 500

#: Words of the API for ours. What is not here is still working.
_ENDS = {
    "filled": OrderStatus.FILLED,
    "canceled": OrderStatus.CANCELLED,
    "replaced": OrderStatus.CANCELLED,
    "rejected": OrderStatus.REJECTED,
    "suspended": OrderStatus.REJECTED,
    "expired": OrderStatus.EXPIRED,
    "done_for_day": OrderStatus.EXPIRED,
}


class AlpacaBroker:
    """`Broker` on Alpaca's REST API and its `trade_updates` stream."""

    def __init__(self, clock: Clock) -> None:
        self._backoff = Backoff(clock)
        self._credentials: Credentials | None = None
        self._rest: RestClient | None = None
        self._tls: ssl.SSLContext | None = None
        self._stream: WebSocket | None = None
        #: Why there is no stream, told again until there is one.
        self._down = BrokerAway("the stream of updates is not open yet")
        #: Held while the stream is exchanged: `close` may come from another thread than `updates`.
        self._exchange = threading.Lock()

    def connect(self, credentials: Credentials) -> Account:
        if credentials.broker == "paper" and credentials.url is None:
            raise BadCredentials('broker "paper" needs the "url" of a paper server in the secret')
        # Checked here because http.client would quote a key it cannot send in its error.
        if not all(
            word.isascii() and word.isprintable() for word in (credentials.key_id, credentials.secret)
        ):
            raise BadCredentials("the key has characters a key cannot have, maybe a line break at its end")
        self.close()
        url = credentials.url or LIVE_URL
        self._tls = ssl.create_default_context() if url.startswith("https:") else None
        keys = {"APCA-API-KEY-ID": credentials.key_id, "APCA-API-SECRET-KEY": credentials.secret}
        self._rest = RestClient(url, {**keys, "User-Agent": "muster"}, self._tls)
        self._credentials = credentials
        return self.account()

    def account(self) -> Account:
        found = self._read("/v2/account")
        return Account(
            account_id=found["id"],
            currency=found["currency"],
            cash=Decimal(found["cash"]),
            equity=Decimal(found["equity"]),
            buying_power=Decimal(found["buying_power"]),
            blocked=found["trading_blocked"] or found["account_blocked"],
        )

    def place(self, order: NewOrder) -> Order:
        body = {
            "client_order_id": order.client_order_id,
            "symbol": order.symbol,
            "side": order.side.value,
            "type": order.type.value,
            "qty": str(order.qty),
            "time_in_force": order.time_in_force.value,
        }
        if order.limit_price is not None:
            body["limit_price"] = str(order.limit_price)
        answer = self._ask("POST", "/v2/orders", body)
        if answer.status == 200:
            return _order(answer.body)
        if answer.status == 422 and "client_order_id must be unique" in answer.message:
            return self._already_placed(order)
        # 403 is both "forbidden." for the key and, with other words, "not enough buying power".
        refused = answer.status == 403 and not answer.message.lower().startswith("forbidden")
        if refused or answer.status in (400, 422):
            raise OrderRejected(answer.message or f"refused with status {answer.status}")
        raise _error(answer)

    def _already_placed(self, order: NewOrder) -> Order:
        known = self.get(order.client_order_id)
        if known is None:
            raise BrokerAway(f"order {order.client_order_id} exists but cannot be read yet")
        if (known.symbol, known.side, known.qty) != (order.symbol, order.side, order.qty):
            raise OrderRejected(f"client_order_id {order.client_order_id} belongs to a different order")
        return known

    def cancel(self, client_order_id: str) -> Order | None:
        known = self.get(client_order_id)
        if known is None or known.status.final:
            return known
        answer = self._ask("DELETE", f"/v2/orders/{quote(known.broker_order_id)}")
        # 422: it came to its end in between; the read below says which.
        if answer.status not in (200, 204, 422):
            raise _error(answer)
        return self.get(client_order_id)

    def get(self, client_order_id: str) -> Order | None:
        query = urlencode({"client_order_id": client_order_id})
        answer = self._ask("GET", f"/v2/orders:by_client_order_id?{query}")
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise _error(answer)
        return _order(answer.body)

    def open_orders(self) -> list[Order]:
        found: dict[str, Order] = {}
        query: dict[str, Any] = {"status": "open", "direction": "asc", "limit": PAGE}
        while True:
            page = [_order(raw) for raw in self._read(f"/v2/orders?{urlencode(query)}")]
            fresh = [order for order in page if order.broker_order_id not in found]
            found.update((order.broker_order_id, order) for order in fresh)
            if len(page) < PAGE or not fresh:
                return list(found.values())
            # `after` is exclusive: a step back keeps orders of the same instant across the page border.
            query["after"] = (page[-1].submitted_at - timedelta(microseconds=1)).isoformat()

    def updates(self, timeout: timedelta) -> Update | Opened | None:
        stream = self._stream
        if stream is None:
            return self._open_stream(timeout)
        try:
            text = stream.recv(timeout=timeout.total_seconds())
            message = json.loads(text)
            data = message["data"]
            if message["stream"] != "trade_updates":
                return None
            return Update(
                event=data["event"],
                order=_order(data["order"]),
                at=datetime.fromisoformat(data["timestamp"]),
                price=_decimal(data.get("price")),
                qty=_decimal(data.get("qty")),
            )
        except TimeoutError:
            return None
        except (OSError, WebSocketException, ValueError, KeyError) as lost:
            self._drop_stream()
            raise self._stream_down(BrokerAway(f"the stream of updates was lost ({lost!r})")) from lost

    def close(self) -> None:
        with self._exchange:
            self._credentials = None
        self._drop_stream()
        if self._rest is not None:
            self._rest.close()

    def _drop_stream(self) -> None:
        with self._exchange:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _stream_down(self, why: BrokerAway) -> BrokerAway:
        """Remember why there is no stream, and when to try again."""
        why.after = self._backoff.failed(why.after)
        self._down = why
        return why

    def _open_stream(self, timeout: timedelta) -> Opened:
        if left := self._backoff.wait(timeout):
            raise type(self._down)(str(self._down), left)
        credentials = self._connected()
        try:
            stream = self._handshake(credentials)
        except BrokerAway as away:
            raise self._stream_down(away) from None
        except InvalidStatus as refused:
            # The API answers a handshake with 429 while the key has another connection.
            status = refused.response.status_code
            kind = SlotTaken if status == 429 else BrokerAway
            raise self._stream_down(kind(f"the stream was refused with status {status}")) from refused
        except (OSError, WebSocketException, ValueError, KeyError) as away:
            raise self._stream_down(BrokerAway(f"the stream cannot be opened ({away!r})")) from away
        with self._exchange:
            if self._credentials is credentials:
                self._stream = stream
        if self._stream is not stream:  # closed by another thread meanwhile
            stream.close()
            raise BrokerAway("the session was closed")
        self._backoff.succeeded()
        return Opened()

    def _handshake(self, credentials: Credentials) -> WebSocket:
        """Connect, authenticate, listen. A socket that did not get that far is closed here, not left to
        hold the key's only slot."""
        base = (credentials.url or LIVE_URL).rstrip("/")
        stream = WebSocket(f"ws{base.removeprefix('http')}/stream", self._tls, CONNECT_TIMEOUT)
        try:
            keys = {"key_id": credentials.key_id, "secret_key": credentials.secret}
            answer = _say(stream, {"action": "authenticate", "data": keys})
            if answer["data"].get("status") != "authorized":
                said = str(answer["data"].get("message", ""))
                if "connection limit" in said:
                    raise SlotTaken("another connection holds the stream of this key")
                raise BadCredentials("the stream does not accept this key")
            answer = _say(stream, {"action": "listen", "data": {"streams": ["trade_updates"]}})
            if "trade_updates" not in answer["data"]["streams"]:
                raise BrokerAway("the broker does not offer trade updates now")
        except BaseException:
            stream.close()
            raise
        return stream

    def _connected(self) -> Credentials:
        if self._credentials is None:
            raise BrokerAway("not connected: call connect first")
        return self._credentials

    def _read(self, path: str) -> Any:
        answer = self._ask("GET", path)
        if answer.status != 200:
            raise _error(answer)
        return answer.body

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        self._connected()
        assert self._rest is not None  # made before the credentials are kept
        return self._rest.request(method, path, body)


def _say(stream: WebSocket, message: dict[str, Any]) -> dict[str, Any]:
    stream.send(json.dumps(message))
    answer: dict[str, Any] = json.loads(stream.recv(timeout=READ_TIMEOUT.total_seconds()))
    return answer


def _error(answer: Answer) -> MusterError:
    """The error an answer stands for that none of the caller's cases covered."""
    if answer.status in (401, 403):
        return BadCredentials(f"the broker does not accept this key (status {answer.status})")
    said = f": {answer.message}" if answer.message else ""
    return BrokerAway(f"the broker answered with status {answer.status}{said}", answer.retry_after)


def _decimal(value: Any) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def _order(raw: dict[str, Any]) -> Order:
    filled = Decimal(raw["filled_qty"])
    working = OrderStatus.PARTIAL if filled else OrderStatus.ACCEPTED
    return Order(
        client_order_id=raw["client_order_id"],
        broker_order_id=raw["id"],
        symbol=raw["symbol"],
        side=Side(raw["side"]),
        type=OrderType(raw["type"]),
        qty=Decimal(raw["qty"]),
        filled_qty=filled,
        average_price=_decimal(raw["filled_avg_price"]),
        status=_ENDS.get(raw["status"], working),
        submitted_at=datetime.fromisoformat(raw["submitted_at"]),
        updated_at=datetime.fromisoformat(raw["updated_at"]),
    )
