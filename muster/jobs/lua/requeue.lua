--[[ requeue: send a poisoned or cancelled job round again, with fresh attempts and its checkpoint kept.
  KEYS  1 ready ZSET   2 job HASH   3 poisoned ZSET   4 stats HASH   5 wake LIST
  ARGV  id
  returns {'queued'} | {'refused'} ]]
local text = redis.call('HGET', KEYS[2], ARGV[1])
local state = text and read(text)
if not state or (state.status ~= 'poisoned' and state.status ~= 'cancelled') then return {'refused'} end
if state.status == 'cancelled' then redis.call('HINCRBY', KEYS[4], 'cancelled', -1) end
redis.call('ZREM', KEYS[3], ARGV[1])
state.status, state.finished, state.attempts, state.claimed = 'pending', '0', 0, '0'
state.cancel, state.run_at, state.worker, state.dedup = '0', '0', '', ''
redis.call('HSET', KEYS[2], ARGV[1], write(state))
redis.call('HDEL', KEYS[2], ARGV[1] .. ':e')
redis.call('ZADD', KEYS[1], -state.priority, ARGV[1])
wake(KEYS[5], 1)
return {'queued'}
