"""Seed, check, work and reap by the FlatMachines engine:

python examples/flatmachines/run.py seed --count 10
python examples/flatmachines/run.py check --max-workers 3
python examples/flatmachines/run.py reap --stale-after 60
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from flatmachines.actions import MachineInvoker

from examples.flatmachines.hooks import machine
from muster.jobs.flatmachines import connect


class Processes(MachineInvoker):
    """Launches every job worker as a process that outlives the checker."""

    def __init__(self, url: str, logs: Path) -> None:
        self._url, self._logs = url, logs

    async def launch(self, *, input_data: dict[str, Any], **_: Any) -> None:
        """The job worker is the only machine that is launched here."""
        worker = ["--pool", input_data["pool_id"], "--worker-id", input_data["worker_id"]]
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{input_data['worker_id']}.log").open("ab") as out:
            subprocess.Popen(
                [sys.executable, __file__, "work", "--url", self._url, *worker],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    async def invoke(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the checker waits for nobody")


async def run(options: argparse.Namespace) -> Any:
    jobs = connect(options.url)
    pool = {"pool_id": options.pool}
    match options.what:
        case "seed":
            work = jobs.work.pool(options.pool)
            return [await work.push({"n": n, "delay_s": options.delay}) for n in range(options.count)]
        case "check":
            asked = {**pool, "max_workers": options.max_workers}
            launch = Processes(options.url, options.logs)
            return await machine("parallelization_checker", jobs, launch).execute(input=asked)
        case "work":
            worker = {**pool, "worker_id": options.worker_id or f"worker-{uuid.uuid4().hex[:8]}"}
            return await machine("job_worker", jobs).execute(input=worker)
        case _:
            asked = {**pool, "stale_threshold_seconds": options.stale_after}
            return await machine("stale_worker_reaper", jobs).execute(input=asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["seed", "check", "work", "reap"])
    parser.add_argument("--url", default="sqlite:///.muster/flatmachines.db")
    parser.add_argument("--pool", default="papers")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.1)
    parser.add_argument("--max-workers", type=int, default=3)
    parser.add_argument("--worker-id", help="of work: its name; a new one by default")
    parser.add_argument("--logs", type=Path, default=Path(".muster/logs"), help="of launched workers")
    parser.add_argument("--stale-after", type=float, default=60.0)
    sys.stdout.write(json.dumps(asyncio.run(run(parser.parse_args()))) + "\n")


if __name__ == "__main__":
    main()
