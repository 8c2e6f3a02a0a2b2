--[[ forget_user: a stopped user with nothing left alive needs no more looking at. The desired record and the
  epoch stay: they supersede an old start that comes back from a dead-letter queue.
  KEYS    as begin_start
  ARGV    epoch
  returns {'forgotten'} the caller removes it from the index | {'moved', epoch} ]]
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current ~= tonumber(ARGV[1]) or redis.call('HGET', KEYS[1], 'want') == 'running' then
  return {'moved', int(current)}
end
redis.call('HDEL', KEYS[1], 'task_id', 'missing_since')
return {'forgotten'}
