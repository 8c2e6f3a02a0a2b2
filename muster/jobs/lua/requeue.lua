--[[ requeue: send a poisoned or cancelled job round again, with fresh attempts and its checkpoint kept.
  KEYS  1 ready ZSET   2 job HASH   3 poisoned ZSET   4 stats HASH   5 wake LIST
  ARGV  id
  returns {'queued'} | {'refused'} ]]
local function read(text) -- see push.lua for the fields
  local status, attempts, token, most, priority, claimed, finished, cancel, run_at, worker, dedup = string.match(
    text, '^(%a+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d) (%d+) ([^\n]*)\n(.*)$')
  return {status, tonumber(attempts), tonumber(token), tonumber(most), tonumber(priority), worker,
    tonumber(claimed), tonumber(finished), tonumber(cancel), dedup, tonumber(run_at)}
end
local function write(s)
  return s[1] .. ' ' .. s[2] .. ' ' .. s[3] .. ' ' .. s[4] .. ' ' .. s[5] .. ' ' .. s[7] .. ' ' .. s[8] .. ' '
    .. s[9] .. ' ' .. s[11] .. ' ' .. s[6] .. '\n' .. s[10]
end
local state = redis.call('HGET', KEYS[2], ARGV[1])
state = state and read(state)
if not state or (state[1] ~= 'poisoned' and state[1] ~= 'cancelled') then return {'refused'} end
if state[1] == 'cancelled' then redis.call('HINCRBY', KEYS[4], 'cancelled', -1) end
redis.call('ZREM', KEYS[3], ARGV[1])
state[1], state[2], state[6], state[7], state[8], state[9], state[10], state[11] = 'pending', 0, '', 0, 0, 0, '', 0
redis.call('HSET', KEYS[2], ARGV[1], write(state))
redis.call('HDEL', KEYS[2], ARGV[1] .. ':e')
redis.call('ZADD', KEYS[1], -state[5], ARGV[1])
if redis.call('LLEN', KEYS[5]) < 64 then redis.call('RPUSH', KEYS[5], '1') end
return {'queued'}
