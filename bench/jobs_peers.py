"""The peers of the job bench: one small module each, written into the scratch folder and run there.

Every module offers push(numbers), and work() that never returns. The task is the same for all: note that
job n ran, when, and in which process. All run with the settings that make them fast: no results kept,
many jobs in flight where they can, polling as short as is sensible (a file every 2 ms). huey forgets a job
as soon as a worker has it; so does persist-queue without acknowledgement (`persist-queue-bare`): a list on
disk rather than a job queue, measured for the record and left out of the goals.
"""

HIT = """
import os, time
_out = os.open(os.environ["HITS"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
def hit(n):
    os.write(_out, b"%d %d %d\\n" % (n, os.getpid(), time.time_ns()))
def run(job, ctx):
    hit(job.data)
"""

#: How every peer module is called: `python module.py push 0 100`, `latency 50`, `work`.
MAIN = """
def _latency(count):
    import random, time
    pause = random.Random(count)
    def seen():
        try:
            return len(open(os.environ["HITS"]).readlines())
        except FileNotFoundError:
            return 0
    had = seen()
    for n in range(count):
        begun = time.time_ns()
        push([n])
        print(n, begun, flush=True)
        deadline = time.monotonic() + 5
        while seen() < had + n + 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(pause.uniform(0, 0.02))  # or our polls and the worker's would keep step

if __name__ == "__main__":
    import sys, time
    what, *numbers = sys.argv[1:]
    if what == "push":
        jobs = list(range(*map(int, numbers)))
        begun = time.perf_counter()
        push(jobs)
        print(time.perf_counter() - begun)
    elif what == "latency":
        _latency(int(numbers[0]))
    else:
        work()
"""

_HEAD = """
import asyncio, os, sys
from bench_hit import hit
PORT = int(os.environ.get("PORT", "0"))
PATH = os.environ.get("DB", "")
_loop = asyncio.new_event_loop()
asyncio.set_event_loop(_loop)
"""

VALKEY = {
    "rq": """
from redis import Redis
from rq import Queue, SimpleWorker
_redis = Redis(port=PORT)
_queue = Queue("bench", connection=_redis)
def push(numbers):
    for n in numbers:
        _queue.enqueue("bench_hit.hit", n, result_ttl=0)
def work():
    SimpleWorker([_queue], connection=_redis).work(logging_level="WARNING")
""",
    "arq": """
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
_settings = RedisSettings(port=PORT)
_pool = None
async def task(ctx, n):
    hit(n)
def push(numbers):
    async def all():
        global _pool
        _pool = _pool or await create_pool(_settings)
        for n in numbers:
            await _pool.enqueue_job("task", n)
    _loop.run_until_complete(all())
def work():
    Worker(functions=[func(task, keep_result=0)], redis_settings=_settings, poll_delay=0.005, max_jobs=100,
           handle_signals=False).run()
""",
    "saq": """
from saq import Queue, Worker
_queue = Queue.from_url(f"redis://127.0.0.1:{PORT}/0")
async def task(ctx, *, n):
    hit(n)
def push(numbers):
    async def all():
        await _queue.connect()
        for n in numbers:
            await _queue.enqueue("task", n=n, ttl=-1)
    _loop.run_until_complete(all())
def work():
    _loop.run_until_complete(Worker(_queue, functions=[task], concurrency=10).start())
""",
    "dramatiq": """
import threading
import dramatiq
from dramatiq.brokers.redis import RedisBroker
_broker = RedisBroker(host="127.0.0.1", port=PORT)
dramatiq.set_broker(_broker)
@dramatiq.actor
def task(n):
    hit(n)
def push(numbers):
    for n in numbers:
        task.send(n)
def work():
    dramatiq.Worker(_broker, worker_threads=8).start()
    threading.Event().wait()
""",
    "huey": """
from huey import RedisHuey
_huey = RedisHuey("bench", host="127.0.0.1", port=PORT, results=False)
@_huey.task()
def task(n):
    hit(n)
def push(numbers):
    for n in numbers:
        task(n)
def work():
    _huey.create_consumer(workers=1, periodic=False).run()
""",
    "taskiq": """
from taskiq_redis import ListQueueBroker
broker = ListQueueBroker(f"redis://127.0.0.1:{PORT}/0")
_started = False
@broker.task(task_name="task")
async def task(n):
    hit(n)
def push(numbers):
    async def all():
        global _started
        if not _started:
            await broker.startup()
            _started = True
        for n in numbers:
            await task.kiq(n)
    _loop.run_until_complete(all())
def work():
    words = ["worker", "peer_taskiq:broker", "--workers", "1", "--no-configure-logging"]
    os.execvp(sys.executable, [sys.executable, "-m", "taskiq", *words])
""",
}

SQLITE = {
    "huey": """
from huey import SqliteHuey
_huey = SqliteHuey("bench", filename=PATH, fsync=True, results=False)
@_huey.task()
def task(n):
    hit(n)
def push(numbers):
    for n in numbers:
        task(n)
def work():
    _huey.create_consumer(workers=1, periodic=False, initial_delay=0.002, max_delay=0.002).run()
""",
    "persist-queue": """
import time
from persistqueue import SQLiteAckQueue
from persistqueue.exceptions import Empty
_queue = SQLiteAckQueue(PATH, auto_commit=True, multithreading=True)
def push(numbers):
    for n in numbers:
        _queue.put(n)
def work():
    while True:
        try:
            n = _queue.get(block=False)
        except Empty:
            time.sleep(0.002)
            continue
        hit(n)
        _queue.ack(n)
""",
    "persist-queue-bare": """
import time
from persistqueue import SQLiteQueue
from persistqueue.exceptions import Empty
_queue = SQLiteQueue(PATH, auto_commit=True, multithreading=True)
def push(numbers):
    for n in numbers:
        _queue.put(n)
def work():
    while True:
        try:
            hit(_queue.get(block=False))
        except Empty:
            time.sleep(0.002)
""",
    "litequeue": """
import time
from litequeue import LiteQueue
_queue = LiteQueue(PATH)
def push(numbers):
    for n in numbers:
        _queue.put(str(n))
def work():
    while True:
        message = _queue.pop()
        if message is None:
            time.sleep(0.002)
            continue
        hit(int(message.data))
        _queue.done(message.message_id)
""",
    "flatmachines": """
import time
from flatmachines import SQLiteWorkBackend
_pool = SQLiteWorkBackend(PATH).pool("bench")
def push(numbers):
    async def all():
        for n in numbers:
            await _pool.push(n)
    _loop.run_until_complete(all())
def work():
    async def forever():
        while True:
            item = await _pool.claim("w")
            if item is None:
                await asyncio.sleep(0.002)
                continue
            hit(item.data)
            await _pool.complete(item.id)
    _loop.run_until_complete(forever())
""",
}

OURS = """
from muster.jobs import NewJob, connect
_pool = connect(os.environ["JOBS"]).work.pool("bench")
_size = int(os.environ["BATCH"])
def push(numbers):
    for start in range(0, len(numbers), _size):
        _pool.push_many([NewJob(n, kind="hit") for n in numbers[start : start + _size]])
def work():
    from worker.jobs import main as worker
    words = ["--url", os.environ["JOBS"], "--pool", "bench", "--no-launch", "--batch", os.environ["BATCH"]]
    worker([*words, "--processor", "hit=bench_hit:run", "--drain", "1"])
"""


def module(body: str) -> str:
    """The whole text of a peer's module."""
    return _HEAD + body + MAIN
