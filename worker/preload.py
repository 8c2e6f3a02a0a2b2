"""Everything a worker imports and first uses between its first line and ready. The fork server imports this
once for all: what a library does only once per process (OpenSSL finds its algorithms, the resolver reads its
files) is done here, and no worker waits for it while its user does."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import socket
import traceback
import uuid
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import muster.aws
import muster.brokers.alpaca
import muster.claims
import muster.vault
import worker.boot
import worker.broker
from muster.store import read_ahead
from worker.rehearsal import rehearse

__all__ = ["http", "muster", "traceback", "worker"]

hmac.new(b"key", hashlib.sha256(b"").digest(), hashlib.sha256).hexdigest()
hashlib.sha1(b"", usedforsecurity=False)
socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
json.loads(json.dumps({"id": uuid.uuid4().hex, "url": urlsplit("http://127.0.0.1:80/").hostname}))
# Connects to nobody: a client opens its connection with its first command.
redis.Redis.from_url("redis://127.0.0.1:6390/0", decode_responses=True, retry=Retry(NoBackoff(), 1)).close()
read_ahead()
# As often as the interpreter wants to see code before it specialises it.
for _ in range(10):
    rehearse()
