"""The worker that the peers of `bench.start` start: the same session as Muster's, without Muster around it.

python -m bench.start_worker <user>      reads its secret, opens its paper session, sets its ready key, waits
python -m bench.start_worker --waiting   has its store open; for every user handed to it, it connects to the
                                         broker's port, without a session, and sets the ready key: the limit
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from datetime import timedelta

import redis

#: Ready is when the key is set, by the store's clock: as Muster's own mark says it.
READY = """local now = redis.call('TIME')
redis.call('SET', KEYS[1], now[1] .. '.' .. string.format('%06d', now[2]))"""


def main() -> None:
    valkey = redis.Redis.from_url(os.environ["BENCH_VALKEY"], decode_responses=True)
    if sys.argv[1] == "--waiting":
        valkey.rpush("bench:waiting", os.getpid())
        host, _, port = os.environ["BENCH_SERVER"].rpartition(":")
        while True:
            _, user = valkey.blpop(["bench:limit"])
            with socket.create_connection((host, int(port))):
                valkey.eval(READY, 1, f"bench:ready:{user}")
    serve(sys.argv[1], valkey)


def serve(user: str, valkey: redis.Redis) -> None:
    from muster.aws import AwsClient, Keys
    from muster.brokers.alpaca import AlpacaBroker
    from muster.brokers.port import Opened
    from muster.clock import SystemClock
    from muster.vault import secrets_reader

    secrets = AwsClient("secretsmanager", "us-east-1", os.environ["BENCH_AWS"], 5, Keys("local", "local"))
    broker = AlpacaBroker(SystemClock())
    broker.connect(secrets_reader(secrets)(f"bench/{user}"))
    while not isinstance(broker.updates(timedelta(seconds=1)), Opened):
        pass
    broker.open_orders()
    pipe = valkey.pipeline(transaction=False)
    pipe.incr(f"bench:starts:{user}").rpush("bench:pids", os.getpid()).eval(READY, 1, f"bench:ready:{user}")
    pipe.execute()
    signal.pause()


if __name__ == "__main__":
    main()
