"""Choose the adapter by the broker's name. Each is imported only when asked for: ccxt alone costs 89 MB."""

from __future__ import annotations

from muster.brokers.port import BadCredentials, Broker, Credentials
from muster.clock import Clock, SystemClock

BROKERS = ("alpaca", "paper", "ccxt")


def broker_named(name: str, clock: Clock | None = None) -> Broker:
    """An adapter that is not connected yet. `paper` is the alpaca adapter, at the url of a paper server."""
    clock = clock or SystemClock()
    match name:
        case "alpaca" | "paper":
            from muster.brokers.alpaca import AlpacaBroker

            return AlpacaBroker(clock)
        case "ccxt":
            from muster.brokers.ccxt import CcxtBroker

            return CcxtBroker(clock)
    raise BadCredentials(f"unknown broker {name!r}; the secret must name one of {', '.join(BROKERS)}")


def connect(credentials: Credentials, clock: Clock | None = None) -> Broker:
    """A connected broker. Raises `BadCredentials` or `BrokerAway`."""
    broker = broker_named(credentials.broker, clock)
    broker.connect(credentials)
    return broker
