--[[ bind_launch: the launch of a pool worker answered: remember its task, or free the place.
  KEYS    as reserve_slot (1 to 6)
  ARGV    launch_id | task_id or '' (it failed)
  returns {'bound'} | {'freed'} | {'joined'} its worker was faster ]]
if ARGV[2] == '' then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('HDEL', KEYS[4], ARGV[1])
  return {'freed'}
end
if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then return {'joined'} end
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
return {'bound'}
