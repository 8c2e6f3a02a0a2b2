--[[ leave_pool: an idle worker is on its way out.
  KEYS    as reserve_slot (1 to 6), and KEYS[7] pool:member:{p}:<worker_id>
  ARGV    worker_id
  returns {'left'} ]]
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HDEL', KEYS[5], ARGV[1])
redis.call('DEL', KEYS[7])
return {'left'}
