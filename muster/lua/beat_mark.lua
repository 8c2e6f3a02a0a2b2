--[[ beat_mark: extend mark and state together, if this worker may still act.
  KEYS    as begin_start, and KEYS[6] worker:state:{u} STRING, leased
  ARGV    epoch | worker_id | task_id | via | version | ttl_ms | issued_at_ms | command_id | credentials_ref | cause
          | state | state_ttl_ms | ready (1|0) | healthy_after_ms
  returns {'kept'}
        | {'restored'}           the store had lost this worker; it was written again (index it again)
        | {'fenced', epoch}      the epoch moved: stop acting now
        | {'lost', worker_id}    another worker holds the mark of this epoch ]]
local epoch, worker_id = tonumber(ARGV[1]), ARGV[2]
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current > epoch then return {'fenced', int(current)} end
local mark = redis.call('HMGET', KEYS[3], 'worker_id', 'epoch', 'ready_at')
local desired = redis.call('HMGET', KEYS[1], 'want', 'held_epoch', 'worker_id', 'issued_at', 'failures')
if mark[1] and mark[1] ~= worker_id and tonumber(mark[2]) >= epoch then return {'lost', mark[1]} end
if tonumber(desired[2] or '-1') == epoch and desired[3] ~= worker_id then return {'lost', desired[3]} end

local answer = 'kept'
-- A mark of a lower epoch here is a ghost that a failover brought back: its worker let go before we took ours.
if mark[1] ~= worker_id or current < epoch or not desired[1] then
  answer = 'restored'
  if current < epoch then redis.call('SET', KEYS[2], ARGV[1]) end
  if not desired[1] or (current < epoch and tonumber(desired[4] or '0') <= tonumber(ARGV[7])) then
    redis.call('HSET', KEYS[1], 'want', 'running', 'issued_at', ARGV[7], 'command_id', ARGV[8])
    if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'credentials_ref', ARGV[9]) end
  end
  redis.call('HSET', KEYS[1], 'task_id', ARGV[3], 'worker_id', worker_id, 'held_epoch', ARGV[1])
  redis.call('HDEL', KEYS[1], 'missing_since')
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[3], 'worker_id', worker_id, 'task_id', ARGV[3], 'epoch', ARGV[1], 'via', ARGV[4],
    'version', ARGV[5], 'since', int(now_ms()), 'issued_at', ARGV[7], 'cause', ARGV[10])
  mark[3] = false
  note(KEYS[5], 'mark restored', epoch, worker_id)
end
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('DEL', KEYS[4])
if ARGV[13] == '1' then
  local now = now_ms()
  if not mark[3] then
    redis.call('HSET', KEYS[3], 'ready_at', int(now))
    -- A repair repeats the owner's command, which may be days old; it began with its epoch.
    local own = ARGV[10] == 'repair' or ARGV[10] == 'move'
    local began = own and epoch or tonumber(ARGV[7])
    if answer == 'kept' then note(KEYS[5], 'ready', epoch, int(math.max(0, now - began)) .. ' ms') end
  elseif (desired[5] or '0') ~= '0' and now - tonumber(mark[3]) >= tonumber(ARGV[14]) then
    redis.call('HSET', KEYS[1], 'failures', '0', 'retry_at', '0')
    redis.call('HDEL', KEYS[1], 'reason')
  end
end
redis.call('SET', KEYS[6], ARGV[11], 'PX', ARGV[12])
return {answer}
