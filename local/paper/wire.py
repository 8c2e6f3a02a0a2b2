"""The shapes of Alpaca's trading API: what the book says, as its clients read it; and what they may ask."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from starlette.requests import Request

from local.paper.prices import CENT

_SYMBOL = re.compile(r"[A-Z]{1,6}(?:[./][A-Z]{1,4})?")
_CLIENT_ID_LIMIT = 128


class Invalid(Exception):
    """A request that the API answers with 422 and these words."""


def instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


async def body(request: Request) -> Any:
    """The JSON of a request. Raises `Invalid`."""
    try:
        return await request.json()
    except ValueError:
        raise Invalid("request body format is invalid") from None


def new_order(body: Any) -> dict[str, Any]:
    """A request for an order, checked. Raises `Invalid`."""
    if not isinstance(body, dict):
        raise Invalid("request body must be an object")
    symbol = str(body.get("symbol"))
    if not _SYMBOL.fullmatch(symbol):
        raise Invalid(f'asset "{symbol[:20]}" not found')
    order = {
        "client_order_id": body.get("client_order_id") or str(uuid.uuid4()),
        "symbol": symbol,
        "side": _one_of(body, "side", "buy", "sell"),
        "type": _one_of(body, "type", "market", "limit"),
        "time_in_force": _one_of(body, "time_in_force", "day", "gtc", "ioc"),
        "qty": _positive(body, "qty"),
        "limit_price": None,
    }
    if not isinstance(order["client_order_id"], str) or len(order["client_order_id"]) > _CLIENT_ID_LIMIT:
        raise Invalid(f"client_order_id must be no more than {_CLIENT_ID_LIMIT} characters")
    if order["type"] == "limit":
        order["limit_price"] = _positive(body, "limit_price")
    elif body.get("limit_price") is not None:
        raise Invalid("market orders must not have a limit_price")
    return order


def _one_of(body: dict[str, Any], name: str, *words: str) -> str:
    if body.get(name) not in words:
        raise Invalid(f"{name} must be one of {', '.join(words)}")
    return str(body[name])


def _positive(body: dict[str, Any], name: str) -> str:
    try:
        value = Decimal(str(body[name]))
    except (KeyError, InvalidOperation):
        raise Invalid(f"{name} is required and must be a number") from None
    if not value.is_finite() or not 0 < value < 10**12:
        raise Invalid(f"{name} must be > 0")
    return str(value)


def order(row: dict[str, Any], skew: float) -> dict[str, Any]:
    """An order as the API shows it."""
    filled = Decimal(row["filled_qty"])
    updated = instant(row["updated_at"] + skew)
    ended = {
        "filled": "filled_at",
        "canceled": "canceled_at",
        "expired": "expired_at",
        "rejected": "failed_at",
    }
    ends = {name: updated if row["status"] == word else None for word, name in ended.items()}
    return {
        "id": row["id"],
        "client_order_id": row["client_order_id"],
        "created_at": instant(row["submitted_at"] + skew),
        "submitted_at": instant(row["submitted_at"] + skew),
        "updated_at": updated,
        **ends,
        "replaced_at": None,
        "replaced_by": None,
        "replaces": None,
        "asset_id": asset_id(row["symbol"]),
        "symbol": row["symbol"],
        "asset_class": "us_equity",
        "notional": None,
        "qty": row["qty"],
        "filled_qty": row["filled_qty"],
        "filled_avg_price": str((Decimal(row["paid"]) / filled).quantize(Decimal("0.0001")))
        if filled
        else None,
        "order_class": "",
        "order_type": row["type"],
        "type": row["type"],
        "side": row["side"],
        "time_in_force": row["time_in_force"],
        "limit_price": row["limit_price"],
        "stop_price": None,
        "status": row["status"],
        "extended_hours": False,
        "legs": None,
        "trail_percent": None,
        "trail_price": None,
        "hwm": None,
    }


def asset_id(symbol: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, symbol))


def update(event: str, row: dict[str, Any], fill: dict[str, Any] | None, skew: float) -> dict[str, Any]:
    """A change of an order, as the stream tells it."""
    told: dict[str, Any] = {
        "event": event,
        "order": order(row, skew),
        "timestamp": instant(row["updated_at"] + skew),
        "execution_id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{row['id']}/{event}")),
    }
    if fill is not None:
        told |= {name: fill[name] for name in ("execution_id", "price", "qty")}
        told["position_qty"] = str(fill["position"])
    return told


def account(row: dict[str, Any], equity: Decimal, buying_power: Decimal, skew: float) -> dict[str, Any]:
    power = str(buying_power.quantize(CENT))
    return {
        "id": row["account_id"],
        "account_number": f"PA{row['account_id'][:8].upper()}",
        "status": "ACTIVE",
        "currency": "USD",
        "cash": str(Decimal(row["cash"]).quantize(CENT)),
        "equity": str(equity.quantize(CENT)),
        "last_equity": str(equity.quantize(CENT)),
        "portfolio_value": str(equity.quantize(CENT)),
        "buying_power": power,
        "regt_buying_power": power,
        "daytrading_buying_power": power,
        "multiplier": "1",
        "pattern_day_trader": False,
        "trading_blocked": False,
        "transfers_blocked": False,
        "account_blocked": False,
        "trade_suspended_by_user": False,
        "shorting_enabled": True,
        "daytrade_count": 0,
        "created_at": instant(row["created_at"] + skew),
    }


def position(row: dict[str, Any], price: Decimal) -> dict[str, Any]:
    qty, cost = Decimal(row["qty"]), Decimal(row["cost"])
    value = qty * price
    return {
        "asset_id": asset_id(row["symbol"]),
        "symbol": row["symbol"],
        "exchange": "NASDAQ",
        "asset_class": "us_equity",
        "asset_marginable": False,
        "qty": row["qty"],
        "qty_available": row["qty"],
        "side": "long" if qty > 0 else "short",
        "avg_entry_price": str((cost / qty).quantize(Decimal("0.0001"))),
        "cost_basis": str(cost.quantize(CENT)),
        "market_value": str(value.quantize(CENT)),
        "unrealized_pl": str((value - cost).quantize(CENT)),
        "current_price": str(price),
    }


def clock(now: float) -> dict[str, Any]:
    """The paper market never closes; its day ends at midnight UTC."""
    at = datetime.fromtimestamp(now, UTC)
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return {
        "timestamp": at.isoformat(),
        "is_open": True,
        "next_open": midnight.isoformat(),
        "next_close": midnight.isoformat(),
    }
