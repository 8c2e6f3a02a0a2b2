--[[ keep_sweep: the coordinator of this run goes on; its lease is renewed, if it is still its own.
  KEYS[1] sweep:{sweep}:run HASH, leased
  ARGV    run_id | lease_ms
  returns {'kept'} | {'lost', run_id of the other or ''} ]]
local running = redis.call('HMGET', KEYS[1], 'run', 'busy')
if running[1] ~= ARGV[1] or running[2] ~= '1' then return {'lost', running[1] or ''} end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'kept'}
