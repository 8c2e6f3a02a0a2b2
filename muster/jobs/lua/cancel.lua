--[[ cancel: end a pending job, or ask the holder of a claimed one to stop.
  KEYS  1 ready ZSET   2 delayed ZSET   3 job HASH   4 dedup HASH   5 stats HASH
  ARGV  id | now_ms
  returns {status after} | {'unknown'} ]]
local text = redis.call('HGET', KEYS[3], ARGV[1])
if not text then return {'unknown'} end
local state = read(text)
if state.status == 'pending' then
  state.status, state.finished, state.run_at = 'cancelled', ARGV[2], '0'
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HINCRBY', KEYS[5], 'cancelled', 1)
  if state.dedup ~= '' then redis.call('HDEL', KEYS[4], state.dedup) end
elseif state.status == 'claimed' then
  state.cancel = '1'
end
redis.call('HSET', KEYS[3], ARGV[1], write(state))
return {state.status}
