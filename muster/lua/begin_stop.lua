--[[ begin_stop: the owner wants no worker. Raising the epoch fences every start in flight and every live worker.
  KEYS    as begin_start
  ARGV    issued_at_ms | command_id | reason or ''
  returns {'stopping', epoch, task_id...}  tasks that may still run for this user (a repeat returns them again)
        | {'superseded', want} ]]
local issued_at, command_id = tonumber(ARGV[1]), ARGV[2]
local desired = hash(KEYS[1])
local epoch = tonumber(redis.call('GET', KEYS[2]) or '0')
if issued_at < tonumber(desired.issued_at or '0') then
  note(KEYS[5], 'superseded', epoch, 'stop ' .. command_id)
  return {'superseded', desired.want or ''}
end
if not (desired.want == 'stopped' and desired.command_id == command_id) then
  epoch = raise_epoch(KEYS[2], epoch)
  redis.call('HSET', KEYS[1], 'want', 'stopped', 'issued_at', int(issued_at), 'command_id', command_id,
    'failures', '0', 'retry_at', '0')
  redis.call('HDEL', KEYS[1], 'missing_since', 'reason')
  if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'reason', ARGV[3]) end
  note(KEYS[5], 'begin stop', epoch, command_id)
end
local answer, known = {'stopping', int(epoch)}, {}
for _, task in ipairs({redis.call('HGET', KEYS[3], 'task_id') or '', redis.call('HGET', KEYS[4], 'task_id') or '',
    desired.task_id or ''}) do
  if task ~= '' and not known[task] then
    known[task] = true
    answer[#answer + 1] = task
  end
end
redis.call('DEL', KEYS[4])
tell_workers('SHUTDOWN', user_of(KEYS[1]), epoch)
return answer
