"""Names of everything in Valkey, once. `{...}` is a literal hash tag: one user's keys share a slot.

Scripts get every key they touch in KEYS; none builds a name of its own.
"""

from __future__ import annotations

from hashlib import blake2b

from muster.blueprint import INDEX_BUCKETS

#: Pub/sub channel for SHUTDOWN and RESTART.
CONTROL = "worker:control"
#: Pub/sub channel on which the local pollers are told that a queue has something.
NUDGE = "muster:nudge"
#: Pub/sub channel of what happened, for whoever watches (the API's event stream).
EVENTS = "muster:events"
#: stream: every change somebody asked the API for; capped.
AUDIT = "api:audit"


def desired(user: str) -> str:
    """hash, for ever: want, issued_at, command_id, credentials_ref, failures, retry_at, last holder."""
    return f"worker:desired:{{{user}}}"


def epoch(user: str) -> str:
    """int, for ever: the fencing number, at least the server time in ms of the last start or stop."""
    return f"worker:epoch:{{{user}}}"


def active(user: str) -> str:
    """hash, 30 s: the mark. worker_id, task_id, epoch, via, version, since, ready_at."""
    return f"worker:active:{{{user}}}"


def starting(user: str) -> str:
    """hash, until its deadline: the start lease. epoch, command_id, attempt, task_id, since."""
    return f"worker:starting:{{{user}}}"


def state(user: str) -> str:
    """JSON, 60 s: what the worker last published."""
    return f"worker:state:{{{user}}}"


def inbox(user: str) -> str:
    """stream: orders and commands for the worker."""
    return f"worker:inbox:{{{user}}}"


def order(user: str, order_id: str) -> str:
    """hash: the truth about one order, as the broker told it."""
    return f"order:{{{user}}}:{order_id}"


def order_index(user: str) -> str:
    """zset order_id -> created_at (ms)."""
    return f"order:index:{{{user}}}"


def open_orders(user: str) -> str:
    """set of the orders that were sent and are not final."""
    return f"order:open:{{{user}}}"


def order_request(user: str, digest: str) -> str:
    """string, 24 h: the order that this idempotency key (its digest) was used for."""
    return f"order:key:{{{user}}}:{digest}"


def restarting(user: str) -> str:
    """flag, 60 s: restart now, no backoff."""
    return f"worker:restarting:{{{user}}}"


def history(user: str) -> str:
    """list: the last lines of the user's time line, `ms|event|epoch|detail`."""
    return f"worker:history:{{{user}}}"


def starts() -> str:
    """list, newest first, capped: one line per worker that became ready, of all users."""
    return "worker:starts:{all}"


def bulk(digest: str) -> str:
    """JSON, 24 h: the users that a bulk command (by the digest of its idempotency key) is for."""
    return f"api:bulk:{{{digest}}}"


def user_keys(user: str) -> tuple[str, ...]:
    """The keys of one user's life, in the order every lifecycle script takes them."""
    return desired(user), epoch(user), active(user), starting(user), history(user), state(user)


def task_owner(task_id: str) -> str:
    """Whose task this is: a task's event names only the task."""
    return f"task:owner:{{{task_id}}}"


def bucket_of(user: str) -> int:
    """The index bucket of a user: spread evenly, the same for ever."""
    return int.from_bytes(blake2b(user.encode(), digest_size=2).digest(), "big") % INDEX_BUCKETS


def index(bucket: int) -> str:
    """set: user ids of one of 256 buckets by hash; what maintenance partitions."""
    return f"users:index:{bucket:02x}"


def pool_idle(pool: str) -> str:
    """zset worker_id -> expires at (ms): live and waiting."""
    return f"pool:idle:{{{pool}}}"


def pool_outstanding(pool: str) -> str:
    """zset claim_id -> deadline (ms): sent, not taken yet."""
    return f"pool:outstanding:{{{pool}}}"


def pool_launching(pool: str) -> str:
    """zset launch_id -> deadline: launched, not reported yet. What keeps the pool from overshooting."""
    return f"pool:launching:{{{pool}}}"


def pool_tasks(pool: str) -> str:
    """hash launch_id or worker_id -> task_id, so that the sweep knows every task of the pool."""
    return f"pool:tasks:{{{pool}}}"


def pool_versions(pool: str) -> str:
    """hash worker_id -> version: a claim counts only the idle workers that can take it."""
    return f"pool:versions:{{{pool}}}"


def pool_config(pool: str) -> str:
    """hash target, version: what the pool should be."""
    return f"pool:config:{{{pool}}}"


def pool_demand(pool: str) -> str:
    """zset claim_id -> asked at (ms): what the adaptive target is reckoned from."""
    return f"pool:demand:{{{pool}}}"


def pool_claims(pool: str) -> str:
    """list of claims: the Valkey claim channel."""
    return f"pool:claims:{{{pool}}}"


def pool_wake(pool: str, worker_id: str) -> str:
    """list: something here ends this worker's blocking wait for a claim."""
    return f"pool:wake:{{{pool}}}:{worker_id}"


def pool_member(pool: str, worker_id: str) -> str:
    """hash, 30 s: task_id, version, host, since."""
    return f"pool:member:{{{pool}}}:{worker_id}"


def pool_keys(pool: str) -> tuple[str, ...]:
    """The keys of one pool, in the order every pool script takes them."""
    return (
        pool_idle(pool),
        pool_outstanding(pool),
        pool_launching(pool),
        pool_tasks(pool),
        pool_versions(pool),
        pool_config(pool),
    )


def budget(bucket: str) -> str:
    """hash: tokens of a call bucket that all functions share."""
    return f"budget:{{{bucket}}}"


#: Fenced run of the sweep coordinator.
SWEEP_RUN = "sweep:{sweep}:run"
#: hash task_id -> first seen unknown (ms): tasks nobody claimed in the last whole sweep.
SWEEP_SUSPECTS = "sweep:{sweep}:suspects"


def sweep_listed(run: str) -> str:
    """set of listed task ids of one sweep that no owner has claimed yet."""
    return f"sweep:{{sweep}}:listed:{run}"


def sweep_done(run: str) -> str:
    """set of batches of one sweep that have finished."""
    return f"sweep:{{sweep}}:done:{run}"
