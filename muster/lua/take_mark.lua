--[[ take_mark: let one worker act for a user, if its epoch is still the newest. One epoch serves one worker, ever.
  KEYS    as begin_start
  ARGV    epoch | worker_id | task_id | via | version | ttl_ms | issued_at_ms | command_id | credentials_ref | cause
  returns {'taken'}
        | {'stale', epoch}          a newer start or a stop has been seen
        | {'duplicate', worker_id}  another worker has this very epoch (the claim came twice)
        | {'held', worker_id}       the predecessor's mark still lives: ask again (the start lease is kept alive)
  An epoch above the current one means that the store lost writes: the worker restores what it knows. ]]
local epoch, worker_id = tonumber(ARGV[1]), ARGV[2]
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current > epoch then return {'stale', int(current)} end
local desired = hash(KEYS[1])
if tonumber(desired.held_epoch or '-1') == epoch and desired.worker_id ~= worker_id then
  return {'duplicate', desired.worker_id}
end
local mark = hash(KEYS[3])
if mark.worker_id and mark.worker_id ~= worker_id then
  if tonumber(mark.epoch) >= epoch then return {'duplicate', mark.worker_id} end
  -- Whoever waits here is the start under way: its lease must outlive the wait, or a sweep starts another one.
  local lease = redis.call('HGET', KEYS[4], 'epoch')
  if lease and tonumber(lease) == epoch and redis.call('PTTL', KEYS[4]) < tonumber(ARGV[6]) then
    redis.call('PEXPIRE', KEYS[4], ARGV[6])
  end
  return {'held', mark.worker_id}
end
if current < epoch then redis.call('SET', KEYS[2], ARGV[1]) end
if not desired.want or (current < epoch and tonumber(desired.issued_at or '0') <= tonumber(ARGV[7])) then
  redis.call('HSET', KEYS[1], 'want', 'running', 'issued_at', ARGV[7], 'command_id', ARGV[8])
  if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'credentials_ref', ARGV[9]) end
end
redis.call('HSET', KEYS[1], 'task_id', ARGV[3], 'worker_id', worker_id, 'held_epoch', ARGV[1])
redis.call('HDEL', KEYS[1], 'missing_since')
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[3], 'worker_id', worker_id, 'task_id', ARGV[3], 'epoch', ARGV[1], 'via', ARGV[4],
  'version', ARGV[5], 'since', int(now_ms()), 'issued_at', ARGV[7], 'cause', ARGV[10])
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('DEL', KEYS[4])
note(KEYS[5], 'mark taken', epoch, worker_id)
return {'taken'}
