--[[ bind_start: a task was launched for this start; write it into the lease, which now lasts as long as a boot may.
  KEYS    as begin_start (1 desired, 2 epoch, 3 active, 4 starting, 5 history)
  ARGV    epoch | task_id | lease_ms
  returns {'bound'} | {'taken'} its worker was faster | {'stale', epoch} the start was fenced: stop that task ]]
local epoch = tonumber(ARGV[1])
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current > epoch then return {'stale', int(current)} end
if tonumber(redis.call('HGET', KEYS[3], 'epoch') or '-1') == epoch then return {'taken'} end
redis.call('HSET', KEYS[1], 'task_id', ARGV[2])
redis.call('HSET', KEYS[4], 'epoch', ARGV[1], 'task_id', ARGV[2], 'via', 'cold')
redis.call('HSETNX', KEYS[4], 'attempt', '0')
redis.call('HSETNX', KEYS[4], 'since', int(now_ms()))
redis.call('PEXPIRE', KEYS[4], ARGV[3])
note(KEYS[5], 'launched', epoch, ARGV[2])
return {'bound'}
