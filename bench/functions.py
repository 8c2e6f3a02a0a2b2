"""What a function costs: `python -m bench.functions [--quick]`.

Cold: importing each handler against importing redis and Powertools alone, in fresh processes that take turns,
so that a busy moment meets all of them; CPU time, medians. Warm: round trips and AWS calls of one start and
of a batch of ten, through the real handler on a real server. And the size of the zip of all functions.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from bench.counting import CountedConnection, counted
from lambdas import wiring
from lambdas.worker_control.handler import handler
from local.valkey import embedded_valkey
from muster import keys, steps
from muster.blueprint import FN_WORKER_CONTROL, FUNCTIONS
from muster.budget import Priority
from muster.settings import Settings

ROOT = Path(__file__).parents[1]
#: What every handler uses of Powertools, and the client. Nothing of ours.
ALONE = """
import redis
from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider
from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response
"""
#: The goals.
IMPORT_RATIO = 1.5
ZIP_MB = 15.0
ROUND_TRIPS = 3
AWS_CALLS = 1
#: Enough that a batch of ten does not take the pool below the half at which its manager is woken.
POOL = 20


def import_ms(code: str) -> float:
    """CPU milliseconds of this code in a fresh process, the interpreter's own start left out."""
    measured = (
        f"import time\nbegan = time.process_time()\n{code}\nprint(1000 * (time.process_time() - began))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "POWERTOOLS_METRICS_NAMESPACE": "bench"}
    done = subprocess.run(
        [sys.executable, "-c", measured], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def imports(rounds: int) -> dict[str, float]:
    """Median of each, `alone` among them; the first round only fills the caches."""
    codes = {"alone": ALONE} | {f.name: f"import lambdas.{f.name}.handler" for f in FUNCTIONS}
    taken: dict[str, list[float]] = {name: [] for name in codes}
    for number in range(rounds + 1):
        print(f"imports, round {number} of {rounds}", file=sys.stderr, flush=True)
        for name, code in codes.items():
            taken[name].append(import_ms(code))
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def zip_mb() -> float:
    """The zip that the stacks upload, built as they build it."""
    from infra.bundling import bundle

    return bundle().stat().st_size / 1e6


class CountedAws:
    """Every AWS client at once: counts calls, and answers the ones that a start makes."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def call(**request: Any) -> dict[str, Any]:
            self.calls[name] += 1
            if name == "run_task":
                return {"tasks": [{"taskArn": f"task-{request['clientToken']}", "lastStatus": "PENDING"}]}
            return {}

        return call


def warm_costs(valkey_url: str, channel: str, users: int, idle: int) -> tuple[int, Counter[str]]:
    """Valkey round trips and AWS calls of one invocation of worker_control with `users` starts.

    The function has run before, and `idle` pool workers wait. The wiring is the one of AWS; only what the
    clients of AWS answer is made up.
    """
    aws = CountedAws()
    settings = Settings(valkey_url=valkey_url, claim_channel=channel, version="v1")  # type: ignore[arg-type]
    with (
        mock.patch("lambdas.wiring.aws_client", return_value=aws),
        mock.patch("muster.launchers.ecs.ecs_client", return_value=aws),
    ):
        wiring.use(wiring.from_settings(settings))
    store = wiring.wired().deps(Priority.START).store
    counted(store.client)
    handler(_event("before", users), None)  # connects, and loads the scripts
    store.client.delete(*keys.pool_keys(settings.pool))
    store.client.hset(keys.pool_config(settings.pool), "target", idle)
    for number in range(idle):
        joined = store.one(steps.pool_beat(settings.pool, f"w{number}", f"t{number}", "v1", "", "host"))
        assert joined == ("idle",), joined
    CountedConnection.sent = 0
    aws.calls.clear()
    answer = handler(_event(f"u-{channel}-{idle}", users), None)
    if answer["batchItemFailures"]:
        raise RuntimeError(f"starts failed: {answer}")
    return CountedConnection.sent, aws.calls


def _event(prefix: str, users: int) -> dict[str, Any]:
    def record(number: int) -> dict[str, Any]:
        name = f"{prefix}-{number}"
        return {
            "messageId": f"m-{name}",
            "receiptHandle": "handle",
            "body": json.dumps({"action": "start", "user_id": name}),
            "attributes": {"SentTimestamp": str(round(time.time() * 1000)), "MessageGroupId": name},
            "eventSource": "aws:sqs",
        }

    return {"Records": [record(number) for number in range(users)]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 rounds of imports instead of 15")
    parser.add_argument("--json", type=Path, help="write the answer here too")
    options = parser.parse_args(argv)
    figures: dict[str, Any] = {}
    costs: dict[tuple[str, str, int], int] = {}
    logging.getLogger(FN_WORKER_CONTROL.name).setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="bench-functions-") as folder,
        embedded_valkey(Path(folder)) as server,
    ):
        for channel in ("sqs", "valkey"):
            for name, idle in (("warm", POOL), ("cold", 0)):
                for users in (1, 10):
                    trips, calls = warm_costs(server.url, channel, users, idle)
                    costs[channel, name, users] = trips + calls.total()
                    figures[f"{name} start by {channel}, {users} users"] = (
                        f"{trips} round trips, {calls.total()} AWS calls"
                    )
                    if users == 1:
                        worst = figures.setdefault("most of one start", [0, 0])
                        worst[:] = max(worst[0], trips), max(worst[1], calls.total())
    trips, calls_each = figures.pop("most of one start")
    taken = imports(5 if options.quick else 15)
    alone = taken.pop("alone")
    slowest = max(taken.values())
    figures |= {"importing redis and Powertools alone, CPU ms": round(alone, 1)}
    figures |= {f"importing {name}, CPU ms": round(value, 1) for name, value in taken.items()}
    figures["zip, MB"] = round(size := zip_mb(), 2)
    ten = max(
        cost / (10 * costs[channel, name, 1]) for (channel, name, users), cost in costs.items() if users == 10
    )
    said = {
        "ratios": {
            "goal_import_vs_slowest": round(IMPORT_RATIO * alone / slowest, 3),
            "goal_zip_vs_seen": round(ZIP_MB / size, 3),
            "goal_round_trips_vs_seen": round(ROUND_TRIPS / trips, 3),
            "goal_aws_calls_vs_seen": round(AWS_CALLS / calls_each, 3),
            "ten_single_starts_vs_batch_of_ten": round(1 / ten, 3),
        },
        "figures": figures,
        "lost": 0,
        "doubled": 0,
    }
    for name, value in (figures | said["ratios"]).items():
        print(f"{name:50}{value!s:>35}")
    if options.json:
        options.json.write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
