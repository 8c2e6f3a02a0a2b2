"""Take the pictures of the fleet page: a real engine with a lively fleet, a real browser.

make screenshots
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from api.auth import Role
from api.signing import Signer
from local.browser import browser
from local.driver import EngineProcess, until
from worker.session import Context, IdleSession, SessionRefused

IMAGES = Path(__file__).parent / "img"
ROOT = Path(__file__).parent.parent
_TEAMS = ("atlas", "birch", "cedar", "delta")


class LivelySession(IdleSession):
    """Connects as long as a broker may take; some users have a broker that hangs up, one a wrong key."""

    def open(self, ctx: Context) -> None:
        super().open(ctx)
        time.sleep(random.uniform(0.02, 0.25))  # noqa: S311 - a picture, not a secret
        if ctx.given.user.endswith("-07"):
            raise ConnectionError("the broker hung up: 502 Bad Gateway")
        if ctx.given.user.endswith("-09"):
            raise SessionRefused("bad credentials: the broker does not know this key")
        ctx.publish(symbols=["AAPL", "MSFT", "BTC/USD"], open_orders=2, session="paper")


def lively(engine: EngineProcess) -> str:
    """Fill the fleet and hurt some of it; the user whose page is worth a picture."""
    users = [f"{team}-{number:02}" for team in _TEAMS for number in range(1, 8)] + ["delta-08", "delta-09"]
    _jobs(engine)
    for start in range(0, len(users), 6):
        for user in users[start : start + 6]:
            engine.command(user, "start")  # more than are idle: some start cold
        until(lambda: engine.api.get("/v1/pool").json()["idle"] >= 3, "the pool is filled again")
    healthy = [user for user in users if not user.endswith(("-07", "-09"))]
    with ThreadPoolExecutor(4) as watchers:
        seen = dict(zip(healthy, watchers.map(engine.ready, healthy), strict=True))
    for user in healthy[1:8]:
        os.kill(seen[user]["pid"], signal.SIGKILL)
    for user in healthy[1:8]:
        engine.ready(user, seen[user]["epoch"])
    for user in healthy[-2:]:
        reason = {"reason": "the desk is closed for today"}
        engine.api.post(f"/v1/workers/{user}/stop", json=reason).raise_for_status()
    engine.api.post(f"/v1/workers/{healthy[9]}/restart", json={"reason": "new settings"}).raise_for_status()
    _messages(engine)
    engine.api.put("/v1/pool", json={"target": 8}, headers={"Muster-Reason": "the market opens"})
    until(lambda: engine.api.get("/v1/pool").json()["idle"] >= 7, "the pool is filled again")
    return healthy[1]


def _messages(engine: EngineProcess) -> None:
    import boto3

    sqs = boto3.client(
        "sqs",
        endpoint_url=engine.endpoints["aws"],
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106 - the local endpoint takes any
    )
    queue = engine.endpoints["queues"]["worker-control.fifo"]
    for number, body in enumerate(('{"action":"explode","user_id":"atlas-01"}', '{"action":"start"}')):
        sqs.send_message(
            QueueUrl=queue,
            MessageBody=body,
            MessageGroupId="atlas-01",
            MessageDeduplicationId=f"bad-{number}",
        )
    until(lambda: engine.api.get("/v1/queues").json()[0]["dead_letter"] == 2, "two messages are given up")


def _jobs(engine: EngineProcess) -> None:
    def push(pool: str, *jobs: dict[str, Any]) -> None:
        engine.api.post(f"/v1/pools/{pool}/jobs", json={"jobs": jobs}).raise_for_status()

    days = [{"data": {"delay_s": 0.4, "day": day}} for day in range(9)]
    push("backtests", *days, {"data": {"fail": "no prices for 2026-11-14"}, "max_retries": 1})
    reports = [{"data": {"delay_s": 90, "report": number}} for number in range(4)]
    push("reports", *reports, {"data": {"delay_s": 90}, "delay": 600})
    until(lambda: engine.api.get("/v1/pools/backtests").json()["done"] == 9, "the backtests are done")
    until(lambda: engine.api.get("/v1/pools/backtests").json()["poisoned"] == 1, "one is poisoned")


def shoot(chromium: Any, engine: EngineProcess, user: str) -> None:
    """Every picture, in the light and size its name says."""
    views = [
        ("fleet-light", "light", (1280, 1180), "#/", "#starts .chart"),
        ("fleet-dark", "dark", (1280, 1180), "#/", "#starts .chart"),
        ("fleet-360", "light", (360, 800), "#/", "#starts .chart"),
        ("workers-360", "dark", (360, 800), "#/?q=atlas", "tbody tr"),
        ("worker-light", "light", (1280, 1000), f"#/worker/{user}", ".timeline li"),
        ("worker-dark", "dark", (1280, 1000), f"#/worker/{user}", ".timeline li"),
        ("queues-light", "light", (1280, 620), "#/queues/worker-control.fifo", ".letter"),
        ("jobs-dark", "dark", (1280, 720), "#/jobs/backtests", "#jobs tbody tr"),
        ("audit-light", "light", (1280, 620), "#/audit", "#audit tbody tr"),
        ("bulk-light", "light", (1280, 900), "#/?q=atlas", "tbody tr"),
    ]
    for name, scheme, (width, height), address, shown in views:
        page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(engine.endpoints["api"])
        page.get_by_label("Token of the API").fill(
            Signer.read(engine.folder).token(Role.OPERATOR, sub="kim@example.com")
        )
        page.get_by_role("button", name="Show the fleet").click()
        page.goto(f"{engine.endpoints['api']}/{address}")
        page.locator(shown).first.wait_for()
        page.locator("#pulse.live").wait_for()
        if name.startswith("workers"):
            page.locator("#workers").scroll_into_view_if_needed()
            page.evaluate("document.getElementById('workers').scrollIntoView()")
        if name.startswith("bulk"):
            page.get_by_role("button", name="stop all").click()
            page.get_by_label("Reason").fill("the desk is closed for today")
        page.screenshot(path=IMAGES / f"{name}.png")
        page.close()
        print(f"docs/img/{name}.png  {(IMAGES / f'{name}.png').stat().st_size // 1024} KB", file=sys.stderr)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {"PYTHONPATH": str(ROOT)}
        options = ("--pool", "4", "--speed", "10", "--session", "docs.screenshots:LivelySession")
        engine = EngineProcess(Path(folder) / "engine", *options, env=env)
        try:
            user = lively(engine.start())
            with browser() as chromium:
                shoot(chromium, engine, user)
        finally:
            engine.end()


if __name__ == "__main__":
    main()
