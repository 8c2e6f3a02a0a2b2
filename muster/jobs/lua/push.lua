--[[ push: add jobs; a dedup key that is pending or claimed gives the job it already has.
  KEYS  1 ready ZSET (-priority, id)   2 delayed ZSET (run_at_ms, id)   3 job HASH   4 dedup HASH
        5 ids ZSET (0, id)   6 seq INT, never expires   7 wake LIST
  ARGV  now_us, then per job: dedup ('' for none) | run_at_ms (0: now) | max_retries | priority | body
  returns {id, ...} in order
  A job's state is one line, "status attempts token max_retries priority claimed_ms finished_ms cancel run_at_ms
  worker", then its dedup key: joining text costs a twentieth of encoding JSON. In Lua it is a table: 1 status,
  2 attempts, 3 token, 4 max_retries, 5 priority, 6 worker, 7 claimed_ms, 8 finished_ms, 9 cancel (0/1), 10 dedup,
  11 run_at_ms. A job's body is never decoded here: cjson would turn [] into {}. ]]
local function write(s)
  return s[1] .. ' ' .. s[2] .. ' ' .. s[3] .. ' ' .. s[4] .. ' ' .. s[5] .. ' ' .. s[7] .. ' ' .. s[8] .. ' '
    .. s[9] .. ' ' .. s[11] .. ' ' .. s[6] .. '\n' .. s[10]
end
local seq = tonumber(redis.call('GET', KEYS[6]) or '0')
local now = tonumber(ARGV[1])
local ids, woken = {}, 0
for i = 2, #ARGV, 5 do
  local dedup, run_at = ARGV[i], tonumber(ARGV[i + 1])
  local id = dedup ~= '' and redis.call('HGET', KEYS[4], dedup)
  if not id then
    seq = math.max(seq + 1, now)
    id = string.format('%.0f', seq)
    local state = write({'pending', 0, 0, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), '', 0, 0, 0,
      dedup, run_at})
    redis.call('HSET', KEYS[3], id, state, id .. ':b', ARGV[i + 4])
    redis.call('ZADD', KEYS[5], 0, id)
    if run_at > 0 then
      redis.call('ZADD', KEYS[2], run_at, id)
    else
      redis.call('ZADD', KEYS[1], -tonumber(ARGV[i + 3]), id)
      woken = woken + 1
    end
    if dedup ~= '' then redis.call('HSET', KEYS[4], dedup, id) end
  end
  ids[#ids + 1] = id
end
redis.call('SET', KEYS[6], string.format('%.0f', seq))
-- One token per waiting worker is enough; a worker that finds nothing clears the list.
for _ = redis.call('LLEN', KEYS[7]) + 1, math.min(woken, 64) do redis.call('RPUSH', KEYS[7], '1') end
return ids
