--[[ note_missing: a sweep saw a running task without its mark; remember since when, once.
  KEYS    as begin_start
  ARGV    epoch
  returns {'noted', since_ms} | {'moved', epoch} ]]
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current ~= tonumber(ARGV[1]) or redis.call('EXISTS', KEYS[3]) == 1 then return {'moved', int(current)} end
redis.call('HSETNX', KEYS[1], 'missing_since', int(now_ms()))
return {'noted', redis.call('HGET', KEYS[1], 'missing_since')}
