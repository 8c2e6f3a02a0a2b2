"""How soon the fleet page shows 10,000 users: real Valkey, the API in a process of its own, a real browser.

`first row` is from the navigation to the first worker on the screen; `cold` means that nobody has looked at
this API before, so that it has read no fleet yet.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from api.auth import Role
from api.signing import Signer
from bench.fleet import populate, user
from local.browser import browser
from local.driver import until
from local.valkey import embedded_valkey, free_port
from muster.store import Store

USERS = 10_000
LIMIT_S = 1.0


def serve(valkey_url: str, folder: str, port: int) -> None:
    """The API of one process, with queues that are empty."""
    import boto3
    import redis
    import uvicorn
    from moto import mock_aws

    from api.app import create_app
    from api.fleet import Fleet
    from api.keyset import KeySet
    from api.signing import LOCAL
    from api.tokens import Tokens
    from muster import blueprint
    from muster.settings import Settings

    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        urls = {}
        for queue in blueprint.QUEUES:
            attributes = {"FifoQueue": "true"} if queue.fifo else {}
            name = "queue_" + queue.name.removesuffix(".fifo").replace("-", "_")
            urls[name] = sqs.create_queue(QueueName=queue.name, Attributes=attributes)["QueueUrl"]
        store = Store(redis.Redis.from_url(valkey_url, decode_responses=True))
        fleet = Fleet(store, sqs, Settings(**urls))
        app = create_app(fleet, fleet.together, Tokens(KeySet(Signer.read(Path(folder)).jwks), LOCAL))
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)


@contextmanager
def api(valkey_url: str, folder: Path) -> Iterator[str]:
    """A fresh API, listening."""
    import httpx

    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(valkey_url, str(folder), port))
    process.start()
    url = f"http://127.0.0.1:{port}"

    def healthy() -> bool:
        try:
            return httpx.get(f"{url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(healthy, "the API listens")
        yield url
    finally:
        process.terminate()
        process.join()


def timed(act: Callable[[], Any], seen: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    seen()
    return time.perf_counter() - began


def measure(chromium: Any, url: str, token: str, users: int) -> dict[str, float]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(f"sessionStorage.setItem('muster-token', {json.dumps(token)})")
    figures: dict[str, float] = {}
    first = f"#workers tbody tr:first-child a >> text={user(0)}"
    counted = f"#phases .ready strong >> text=/^{users - users // 1000:,}$/"
    for state in ("cold", "warm"):
        page = context.new_page()
        figures[f"first row, {state}, s"] = timed(
            lambda page=page: page.goto(url, wait_until="commit"), page.locator(first).wait_for
        )
        began = time.perf_counter()
        page.locator(counted).wait_for()
        figures[f"counted after that, {state}, s"] = time.perf_counter() - began
        if state == "cold":
            page.close()
    second = page.locator(f"#workers tbody a >> text={user(50)}")
    figures["next page, s"] = timed(page.get_by_role("button", name="Next").click, second.wait_for)
    last = page.locator(f"#workers tbody tr:first-child a >> text={user(users - 1)}")
    figures["turned round, s"] = timed(page.get_by_role("button", name="User").click, last.wait_for)
    one = page.locator("#matching >> text=1 worker with")
    search = page.get_by_label("Search")
    figures["searched, s"] = timed(lambda: search.fill(user(4321)), one.wait_for)
    context.close()
    return figures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same: it is short")
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--json", type=Path, help="write the answer here too")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-page-") as name:
        folder = Path(name)
        token = Signer.make(folder).token(Role.VIEWER, ttl=timedelta(hours=1))
        with embedded_valkey(folder / "valkey") as valkey, browser() as chromium:
            print(f"writing {options.users:,} users", file=sys.stderr)
            populate(Store(valkey.client()), options.users)
            with api(valkey.url, folder) as url:
                figures = measure(chromium, url, token, options.users)
    ratios = {"page_first_row_cold": LIMIT_S / figures["first row, cold, s"]}
    for name, value in figures.items():
        print(f"{name:34} {value:7.3f}")
    if options.json:
        rounded = {name: round(value, 3) for name, value in figures.items()}
        options.json.write_text(json.dumps({"ratios": ratios, "figures": rounded, "lost": 0, "doubled": 0}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
