--[[ take_slot: a pool worker has received a claim and leaves the pool to try for the mark.
  KEYS    as reserve_slot (1 to 6)
  ARGV    worker_id | claim_id
  returns {'left'} | {'retired'} it had been taken out already: give the claim back and exit ]]
expire_pool(KEYS, now_ms())
local was_idle = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HDEL', KEYS[5], ARGV[1])
if was_idle == 0 then return {'retired'} end
redis.call('ZREM', KEYS[2], ARGV[2])
return {'left'}
