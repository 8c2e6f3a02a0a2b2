"""The paper broker's HTTP face: routes, authentication, faults, audits, and the process around them."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router, WebSocketRoute

from local.paper import wire
from local.paper.admin import admin_routes
from local.paper.book import Book, DuplicateOrder, secret_hash
from local.paper.faults import Faults
from local.paper.matching import Matching
from local.paper.streams import Streams
from muster.scrub import guard

#: Most orders in one answer (a limit of the API), and how many without asking.
PAGE_MAX, PAGE = 500, 50
#: A frozen client loses its stream within the sum of these, before its worker loses its lease.
PING_EVERY_S, PING_PATIENCE_S = 5.0, 10.0


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """How a paper broker is started. `accounts` is a JSON file of key ids and their secrets; with
    `open_accounts` every other key gets an account on its first use, with the secret it came with."""

    host: str = "127.0.0.1"
    port: int = 0
    seed: int = 1
    book: Path | None = None
    accounts: Path | None = None
    open_accounts: bool = False
    cash: Decimal = Decimal(1_000_000)
    faults: Faults = field(default_factory=Faults)


class Refusal(Exception):
    """An answer that is an error of the API: status, code and words."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = JSONResponse({"code": code, "message": message}, status)


Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


class PaperServer:
    """The routes, and the parts they use. Everything runs on one event loop, so the book needs no lock."""

    def __init__(self, settings: PaperSettings) -> None:
        self._settings = settings
        self._book = Book(settings.book)
        self._book.close_all_sessions(time.time())
        self._matching = Matching(self._book, settings.seed, time.time, self._tell)
        self._matching.faults = settings.faults
        self._streams = Streams(self._book, self._matching, time.time, self._knows, self._cut)
        self._requests: Counter[str] = Counter()
        if settings.accounts is not None:
            for key_id, secret in json.loads(settings.accounts.read_text()).items():
                self._book.create_account(key_id, secret, settings.cash, time.time())
        config = uvicorn.Config(
            self._app(),
            http="httptools",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ws_max_size=64 * 1024,
            ws_ping_interval=PING_EVERY_S,
            ws_ping_timeout=PING_PATIENCE_S,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. The address is printed first, as one line of JSON on stdout."""
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._settings.host, self._settings.port))
            host, port = listener.getsockname()
            listener.listen(1024)
            sys.stdout.write(json.dumps({"url": f"http://{host}:{port}"}) + "\n")
            sys.stdout.flush()
            try:
                self._uvicorn.run(sockets=[listener])
            finally:
                self._book.close()

    def _app(self) -> Router:
        def of_account(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
            async def answer(request: Request) -> Response:
                return await self._with_faults(request, handler)

            return answer

        return Router(
            lifespan=self._lifespan,
            routes=[
                Route("/v2/account", of_account(self._account)),
                Route("/v2/clock", of_account(self._clock)),
                Route("/v2/positions", of_account(self._positions)),
                Route("/v2/orders", of_account(self._list_orders), methods=["GET"]),
                Route("/v2/orders", of_account(self._place), methods=["POST"]),
                Route("/v2/orders", of_account(self._cancel_all), methods=["DELETE"]),
                Route("/v2/orders:by_client_order_id", of_account(self._by_client_id)),
                Route("/v2/orders/{order_id}", of_account(self._get), methods=["GET"]),
                Route("/v2/orders/{order_id}", of_account(self._cancel), methods=["DELETE"]),
                WebSocketRoute("/stream", self._streams.serve),
                *admin_routes(self._book, self._matching, self._streams),
            ],
        )

    @asynccontextmanager
    async def _lifespan(self, _: Router) -> AsyncIterator[None]:
        self._matching.resume()
        watch = asyncio.create_task(self._matching.watch())
        yield
        watch.cancel()

    # -- who asks, and what goes wrong

    def _knows(self, key_id: str, secret: str) -> bool:
        found = self._book.account(key_id)
        if found is None:
            if not (self._settings.open_accounts and key_id and secret):
                return False
            found = self._book.create_account(key_id, secret, self._settings.cash, time.time())
        return hmac.compare_digest(found["secret_hash"], secret_hash(secret))

    def _cut(self, connection: HTTPConnection) -> None:
        """End a connection as a broken network does. ASGI has no word for it, so ask uvicorn."""
        for protocol in tuple(self._uvicorn.server_state.connections):
            if getattr(protocol, "client", None) == tuple(connection.scope["client"]):
                protocol.transport.abort()

    async def _with_faults(self, request: Request, handler: Handler) -> Response:
        key_id = request.headers.get("APCA-API-KEY-ID", "")
        if not self._knows(key_id, request.headers.get("APCA-API-SECRET-KEY", "")):
            return Refusal(401, 40110000, "request is not authorized").answer
        faults = self._matching.faults
        self._requests[key_id] += 1
        turn = (key_id, self._requests[key_id])
        if faults.latency_s:
            await asyncio.sleep(faults.latency_s)
        if self._matching.strikes(faults.lost_request, "lost request", *turn):
            self._cut(request)
            return Response()
        if self._matching.strikes(faults.rate_limited, "rate limited", *turn):
            answer = Refusal(429, 42910000, "too many requests").answer
            answer.headers["Retry-After"] = str(faults.retry_after_s)
            return answer
        if self._matching.strikes(faults.server_error, "server error", *turn):
            sent = f": {dict(request.headers)}" if faults.echo_headers else ""
            return Refusal(500, 50010000, f"internal server error occurred{sent}").answer
        try:
            account = self._book.account(key_id)
            assert account is not None
            done: Response = await handler(request, account)
        except Refusal as refusal:
            done = refusal.answer
        except wire.Invalid as invalid:
            done = Refusal(422, 40010001, str(invalid)).answer
        if self._matching.strikes(faults.lost_answer, "lost answer", *turn):
            self._cut(request)
        return done

    def _tell(self, event: str, order: dict[str, Any], fill: dict[str, Any] | None) -> None:
        self._streams.publish(order["key_id"], wire.update(event, order, fill, self._skew))

    @property
    def _skew(self) -> float:
        return self._matching.faults.clock_skew_s

    # -- the API

    async def _account(self, _: Request, account: dict[str, Any]) -> Response:
        worth = sum(
            (Decimal(p["qty"]) * self._matching.price(p["symbol"]) for p in self._held(account)), Decimal()
        )
        equity = Decimal(account["cash"]) + worth
        return JSONResponse(wire.account(account, equity, self._buying_power(account), self._skew))

    async def _clock(self, _: Request, _account: dict[str, Any]) -> Response:
        return JSONResponse(wire.clock(time.time() + self._skew))

    async def _positions(self, _: Request, account: dict[str, Any]) -> Response:
        held = self._held(account)
        return JSONResponse([wire.position(row, self._matching.price(row["symbol"])) for row in held])

    async def _place(self, request: Request, account: dict[str, Any]) -> Response:
        order = wire.new_order(await wire.body(request))
        if self._book.order_of(account["key_id"], order["client_order_id"]) is None:
            cost = Decimal(order["qty"]) * Decimal(
                order["limit_price"] or self._matching.price(order["symbol"])
            )
            if order["side"] == "buy" and cost > self._buying_power(account):
                raise Refusal(403, 40310000, "insufficient buying power")
        try:
            row = self._book.add_order(account["key_id"], order, time.time())
        except DuplicateOrder:
            raise wire.Invalid("client_order_id must be unique") from None
        self._matching.accepted(row)
        return JSONResponse(wire.order(row, self._skew))

    async def _list_orders(self, request: Request, account: dict[str, Any]) -> Response:
        query = request.query_params
        status = query.get("status", "open")
        if status not in ("open", "closed", "all"):
            raise wire.Invalid("status must be one of open, closed, all")
        after, until = (_instant(query.get(name)) for name in ("after", "until"))
        symbols = set(filter(None, query.get("symbols", "").split(",")))
        rows = [
            row
            for row in self._book.orders(account["key_id"], status)
            if (after is None or row["submitted_at"] + self._skew > after)
            and (until is None or row["submitted_at"] + self._skew <= until)
            and (not symbols or row["symbol"] in symbols)
            and query.get("side") in (None, row["side"])
        ]
        if query.get("direction", "desc") == "desc":
            rows.reverse()
        asked = query.get("limit", str(PAGE))
        limit = min(int(asked), PAGE_MAX) if asked.isdecimal() else PAGE
        return JSONResponse([wire.order(row, self._skew) for row in rows[:limit]])

    async def _get(self, request: Request, account: dict[str, Any]) -> Response:
        return JSONResponse(wire.order(self._own(request, account), self._skew))

    async def _by_client_id(self, request: Request, account: dict[str, Any]) -> Response:
        row = self._book.order_of(account["key_id"], request.query_params.get("client_order_id", ""))
        if row is None:
            raise Refusal(404, 40410000, "order not found")
        return JSONResponse(wire.order(row, self._skew))

    async def _cancel(self, request: Request, account: dict[str, Any]) -> Response:
        row = self._own(request, account)
        if not self._matching.cancel(row["id"]):
            raise Refusal(422, 42210000, f'order is already in "{row["status"]}" state')
        return Response(status_code=204)

    async def _cancel_all(self, _: Request, account: dict[str, Any]) -> Response:
        rows = self._book.orders(account["key_id"], "open")
        ended = [row["id"] for row in rows if self._matching.cancel(row["id"])]
        return JSONResponse([{"id": order_id, "status": 200} for order_id in ended], 207)

    def _own(self, request: Request, account: dict[str, Any]) -> dict[str, Any]:
        row = self._book.order(request.path_params["order_id"])
        if row is None or row["key_id"] != account["key_id"]:
            raise Refusal(404, 40410000, f"order not found for {request.path_params['order_id']}")
        return row

    def _held(self, account: dict[str, Any]) -> list[dict[str, Any]]:
        return self._book.positions(account["key_id"])

    def _buying_power(self, account: dict[str, Any]) -> Decimal:
        """Cash, less what the open buys may still cost."""
        power = Decimal(account["cash"])
        for row in self._book.orders(account["key_id"], "open"):
            if row["side"] == "buy":
                each = Decimal(row["limit_price"] or self._matching.price(row["symbol"]))
                power -= (Decimal(row["qty"]) - Decimal(row["filled_qty"])) * each
        return max(power, Decimal())


def _instant(text: str | None) -> float | None:
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise wire.Invalid(f"{text!r} is not a time") from None


def serve(settings: PaperSettings) -> None:
    """Run a paper broker in this process until it is told to stop."""
    guard()
    PaperServer(settings).run()
