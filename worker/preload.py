"""Everything a worker imports between its first line and ready. The fork server imports this once for all."""

from __future__ import annotations

import http.client
import traceback

import redis.client

import muster.brokers.alpaca
import muster.claims
import worker.boot
import worker.broker

__all__ = ["http", "muster", "redis", "traceback", "worker"]
