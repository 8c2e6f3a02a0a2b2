--[[ pool_beat: an idle worker says that it lives; the first time it joins, if there is a place for it.
  KEYS    as reserve_slot (1 to 6), and KEYS[7] pool:member:{p}:<worker_id> HASH, leased
  ARGV    worker_id | task_id | version | launch_id or '' | ttl_ms | host
  returns {'idle'} | {'surplus'} no place (late, or the pool shrank): exit | {'outdated', version} exit
  An unconfigured pool (an emptied store) takes every worker that asserts itself. ]]
local now = now_ms()
expire_pool(KEYS, now)
local config = hash(KEYS[6])
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local reserved = redis.call('ZREM', KEYS[3], ARGV[4]) == 1
  redis.call('HDEL', KEYS[4], ARGV[4])
  if config.version and config.version ~= ARGV[3] then return {'outdated', config.version} end
  local taken = redis.call('ZCARD', KEYS[1]) + redis.call('ZCOUNT', KEYS[3], int(now), '+inf')
  if not reserved and config.target and taken >= tonumber(config.target) then return {'surplus'} end
  redis.call('HSET', KEYS[7], 'since', int(now))
end
redis.call('ZADD', KEYS[1], int(now + tonumber(ARGV[5])), ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[5], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[7], 'task_id', ARGV[2], 'version', ARGV[3], 'host', ARGV[6])
redis.call('PEXPIRE', KEYS[7], ARGV[5])
return {'idle'}
