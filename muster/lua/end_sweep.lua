--[[ end_sweep: the coordinator of this run is done.
  KEYS[1] sweep:{sweep}:run HASH
  ARGV    run_id | keep_ms (how long the next run may ask for this one's results)
  returns {'ended'} | {'not_running'} ]]
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return {'not_running'} end
redis.call('HSET', KEYS[1], 'busy', '0')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'ended'}
