"""Deliberate bugs in the job code. Each is one small change; the job world must find every one of them."""

from __future__ import annotations

from sim.mutants import Mutant

MUTANTS = (
    Mutant(
        "claim without taking the job out of the queue",
        "turn.lua",
        "redis.call('ZPOPMIN', KEYS[1], want)",
        "redis.call('ZRANGE', KEYS[1], 0, want - 1, 'WITHSCORES')",
    ),
    Mutant(
        "complete without comparing the status",
        "turn.lua",
        "string.sub(state, 1, #head) == head then\n      ended[id] = true\n"
        "      fields[f + 1], fields[f + 2] = id, 'done ' .. now .. string.sub(state, 10)",
        "string.match(state, '^%a+ %d+ (%d+)') == token then\n      ended[id] = true\n"
        "      fields[f + 1], fields[f + 2] = id, 'done ' .. now .. string.match(state, '^%a+ %d+(.*)')",
        seed=52,
    ),
    Mutant(
        "complete without comparing the token",
        "turn.lua",
        "local head = 'claimed 0 ' .. token .. ' '",
        "local head = 'claimed 0 '",
        seed=50,
    ),
    Mutant(
        "do not count late results",
        "turn.lua",
        "if #done < results then redis.call('HINCRBY', KEYS[6], 'late', results - #done) end",
        "",
        seed=50,
    ),
    Mutant(
        "do not count the attempt",
        "turn.lua",
        "attempts + 1 .. middle",
        "attempts .. middle",
    ),
    Mutant(
        "claim twice with one token",
        "turn.lua",
        "'claimed 0 ' .. token + 1 .. ' '",
        "'claimed 0 ' .. token .. ' '",
    ),
    Mutant(
        "claim before it is time",
        "turn.lua",
        "redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, 1000)",
        "redis.call('ZRANGEBYSCORE', delayed, '-inf', '+inf', 'LIMIT', 0, 1000)",
    ),
    Mutant(
        "fail without comparing the token",
        "settle.lua",
        "(by ~= 'claims' or state.token == tokens[i])",
        "true",
        seed=65,
    ),
    Mutant(
        "reap without comparing the holder",
        "settle.lua",
        "(by ~= 'worker' or state.worker == worker)",
        "true",
        seed=57,
    ),
    Mutant(
        "retry for ever",
        "settle.lua",
        "elseif verdict ~= 'return' and state.attempts >= state.most then state.status = 'poisoned' end",
        "end",
    ),
    Mutant(
        "forget a cancel when the claim ends",
        "settle.lua",
        "if verdict == 'cancel' or state.cancel == '1' then",
        "if verdict == 'cancel' then",
        seed=44,
    ),
    Mutant(
        "cancel without taking the job out of the queue",
        "cancel.lua",
        "  redis.call('ZREM', KEYS[1], ARGV[1])\n",
        "",
    ),
    Mutant("heartbeats do not extend claims", "extend.lua", "redis.call('ZADD', KEYS[1], ARGV[2], id)", ""),
    Mutant(
        "save the checkpoint of a dead claim",
        "report.lua",
        " or state.token ~= ARGV[2]",
        "",
        seed=50,
    ),
    Mutant("push without looking for the dedup key", "push.lua", "dedup ~= '' and", "false and"),
    Mutant(
        "declare lost who has just beaten",
        "status.lua",
        "if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then return {'refused'} end",
        "",
        seed=287,
    ),
    Mutant("capacity does not count who is starting", "register.lua", "status[i + 1] == 'starting' or ", ""),
    Mutant(
        "capacity takes the larger of need and maximum",
        "muster.jobs.capacity:wanted_workers",
        "min(max_workers, queued + running)",
        "max(max_workers, queued + running)",
    ),
    Mutant(
        "keep the place of a launch that failed",
        "muster.jobs.capacity:_ensure",
        "jobs.registration.update_status(worker_id, WorkerStatus.TERMINATED)",
        "pass",
        seed=216,
    ),
    Mutant(
        "release what has not run out",
        "settle.lua",
        "redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1000)",
        "redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '+inf', 'LIMIT', 0, 1000)",
    ),
    Mutant(
        "reap whoever is there",
        "muster.jobs.reaper:is_stale",
        "return worker.status in LIVE and now - worker.last_heartbeat > patience",
        "return worker.status in LIVE",
    ),
    Mutant(
        "never release what ran out",
        "muster.jobs.valkey:ValkeyPool.release_expired",
        "return len(",
        "return 0 * len(() and ",
        seed=15,
    ),
    Mutant(
        "come back without asking for room",
        "worker.jobs_child:Child._come_back",
        "self._pool.settings().max_workers",
        "999",
        seed=19,
    ),
    Mutant(
        "come late without asking for room",
        "worker.jobs:JobWorker._join",
        "self._pool.settings().max_workers",
        "999",
        seed=55,
    ),
    Mutant(
        "go on with claims that could not be settled",
        "worker.jobs:JobWorker._supervise",
        "if not (settled and self._patiently(self._join)):",
        "if not self._patiently(self._join):",
        seed=1951,
    ),
    Mutant(
        "keep what the life before held",
        "worker.jobs:JobWorker._register",
        "self._pool.release_by_worker(options.worker_id)",
        "pass",
        seed=65,
    ),
    Mutant(
        "leave after the last allowed job without a successor",
        "worker.jobs:JobWorker.run",
        "self._patiently(self._check)",
        "pass",
    ),
    Mutant(
        "leave without a last claim",
        "worker.jobs_child:Child._last_claim",
        "claimed = self._turn(self._room())",
        "claimed: list[WorkItem] = []",
        seed=20,
    ),
    Mutant(
        "claim for the last time before leaving the registry",
        "worker.jobs_child:Child._last_claim",
        "    self._patiently(self._registration.update_status, worker, WorkerStatus.TERMINATED)\n"
        "    claimed = self._turn(self._room())\n",
        "    claimed = self._turn(self._room())\n"
        "    self._patiently(self._registration.update_status, worker, WorkerStatus.TERMINATED)\n",
        seed=20,
    ),
    Mutant(
        "work on although declared lost", "worker.jobs:JobWorker._beat", "self._lost.set()", "pass", seed=117
    ),
    Mutant(
        "forget the claims of an answer that was lost",
        "worker.jobs_child:Child._recover",
        "self._settle(sorted(unknown), Verdict.RETURN, None)",
        "",
        seed=800,
    ),
    Mutant(
        "a dead child's job is not settled",
        "worker.jobs:JobWorker._settle_for",
        "for held in self._pool.extend(self._options.worker_id, 2 * self._options.heartbeat):",
        "for held in ():",
    ),
)
