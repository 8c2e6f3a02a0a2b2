--[[ reserve_slot: take one place of the semaphore (live idle minus outstanding claims) and, on the Valkey
  channel, send the claim in the same step.
  KEYS[1] pool:idle:{p} ZSET   KEYS[2] pool:outstanding:{p} ZSET   KEYS[3] pool:launching:{p} ZSET
  KEYS[4] pool:tasks:{p} HASH  KEYS[5] pool:versions:{p} HASH      KEYS[6] pool:config:{p} HASH
  KEYS[7] pool:claims:{p} LIST           KEYS[8] pool:demand:{p} ZSET, forgotten after demand_ms
  ARGV    claim_id | version | deadline_ms | claim or '' (sent elsewhere) | demand_ms
  returns {'reserved', left, target}  a repeat of an outstanding claim is reserved, not sent again
        | {'empty', left, target} ]]
local now = now_ms()
expire_pool(KEYS, now)
redis.call('ZADD', KEYS[8], int(now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', int(now - tonumber(ARGV[5])))
redis.call('PEXPIRE', KEYS[8], ARGV[5])
local target = redis.call('HGET', KEYS[6], 'target') or '0'
local left = #idle_of(KEYS, ARGV[2]) - redis.call('ZCARD', KEYS[2])
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then return {'reserved', int(left), target} end
if left <= 0 then return {'empty', int(left), target} end
redis.call('ZADD', KEYS[2], int(now + tonumber(ARGV[3])), ARGV[1])
if ARGV[4] ~= '' then redis.call('RPUSH', KEYS[7], ARGV[4]) end
return {'reserved', int(left - 1), target}
