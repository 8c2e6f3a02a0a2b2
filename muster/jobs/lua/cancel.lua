--[[ cancel: end a pending job, or ask the holder of a claimed one to stop.
  KEYS  1 ready ZSET   2 delayed ZSET   3 job HASH   4 dedup HASH   5 stats HASH
  ARGV  id | now_ms
  returns {status after} | {'unknown'} ]]
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
local state = redis.call('HGET', KEYS[3], ARGV[1])
if not state then return {'unknown'} end
state = read(state)
if state[1] == 'pending' then
  state[1], state[8], state[11] = 'cancelled', tonumber(ARGV[2]), 0
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HINCRBY', KEYS[5], 'cancelled', 1)
  if state[10] ~= '' then redis.call('HDEL', KEYS[4], state[10]) end
elseif state[1] == 'claimed' then
  state[9] = 1
end
redis.call('HSET', KEYS[3], ARGV[1], write(state))
return {state[1]}
