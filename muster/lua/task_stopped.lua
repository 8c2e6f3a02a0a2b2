--[[ task_stopped: this task is known to have ended; take away what it held, and nothing else.
  KEYS    as beat_mark
  ARGV    task_id | reason
  returns {'cleared', epoch}  it held the mark or the lease of the current epoch, or was the last known task
        | {'not_mine', epoch} the user has moved on to another task ]]
local epoch = tonumber(redis.call('GET', KEYS[2]) or '0')
local cleared, held = false, false
local mark = redis.call('HMGET', KEYS[3], 'task_id', 'epoch')
if mark[1] == ARGV[1] then
  redis.call('DEL', KEYS[3], KEYS[6])
  cleared, held = tonumber(mark[2]) == epoch, true
end
if redis.call('HGET', KEYS[4], 'task_id') == ARGV[1] then
  redis.call('DEL', KEYS[4])
  cleared, held = true, true
end
if redis.call('HGET', KEYS[1], 'task_id') == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'task_id', 'missing_since')
  cleared = true
end
if not cleared then return {'not_mine', int(epoch)} end
-- A worker that let go by itself has said why, and knows better than whoever saw it end.
if ARGV[2] ~= '' and (held or (redis.call('HGET', KEYS[1], 'reason') or '') == '') then
  redis.call('HSET', KEYS[1], 'reason', ARGV[2])
end
note(KEYS[5], 'task stopped', epoch, ARGV[1] .. ' ' .. ARGV[2])
return {'cleared', int(epoch)}
