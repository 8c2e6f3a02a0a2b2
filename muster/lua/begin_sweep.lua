--[[ begin_sweep: one coordinator at a time, by a run id that a late one cannot release.
  KEYS[1] sweep:{sweep}:run HASH, leased
  ARGV    run_id | lock_ms
  returns {'begin', previous_run or ''} | {'busy', run_id} ]]
local running = redis.call('HMGET', KEYS[1], 'run', 'busy')
if running[1] == ARGV[1] or running[2] ~= '1' then
  local previous = running[1] ~= ARGV[1] and running[1] or ''
  redis.call('HSET', KEYS[1], 'run', ARGV[1], 'busy', '1', 'since', int(now_ms()))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'begin', previous}
end
return {'busy', running[1]}
