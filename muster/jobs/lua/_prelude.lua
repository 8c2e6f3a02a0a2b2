--[[ prelude: put before every script of this folder. What a job's state is, and how a sleeping worker is woken.
  A job has up to six fields in the job HASH: ID state, ID:b body, ID:c checkpoint, ID:r result, ID:e error and
  ID:p progress. The state is text, which joins and splits at a twentieth of what JSON costs:

    "status finished_ms token attempts claimed_ms cancel run_at_ms max_retries priority worker\ndedup"

  The order lets `turn` rewrite it without taking it apart. A body is never decoded: cjson turns [] into {}. ]]
local function read(text)
  local status, finished, token, attempts, claimed, cancel, run_at, most, priority, worker, dedup = string.match(
    text, '^(%a+) (%d+) (%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%-?%d+) ([^\n]*)\n(.*)$')
  return {status = status, finished = finished, token = token, attempts = tonumber(attempts), claimed = claimed,
    cancel = cancel, run_at = run_at, most = tonumber(most), priority = priority, worker = worker, dedup = dedup}
end

local function write(s)
  return s.status .. ' ' .. s.finished .. ' ' .. s.token .. ' ' .. s.attempts .. ' ' .. s.claimed .. ' ' .. s.cancel
    .. ' ' .. s.run_at .. ' ' .. s.most .. ' ' .. s.priority .. ' ' .. s.worker .. '\n' .. s.dedup
end

-- One token per waiting worker is enough; a worker that finds nothing clears the list.
local function wake(key, jobs)
  for _ = redis.call('LLEN', key) + 1, math.min(jobs, 64) do redis.call('RPUSH', key, '1') end
end

-- Jobs whose time has come go among the ready ones.
local function promote(ready, delayed, key, now)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, 1000)) do
    local state = read(redis.call('HGET', key, id))
    state.run_at = '0'
    redis.call('HSET', key, id, write(state))
    redis.call('ZREM', delayed, id)
    redis.call('ZADD', ready, -state.priority, id)
  end
end

