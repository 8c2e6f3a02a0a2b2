--[[ unverified_order: a look at an order failed. Says so on its record; what was verified before stays so.
  KEYS[1] order:{u}:<id> HASH
  ARGV    why
  returns {'noted'} | {'verified'} | {'unknown'} ]]
local order = redis.call('HMGET', KEYS[1], 'status', 'verified')
if not order[1] then return {'unknown'} end
if order[2] == 'verified' then return {'verified'} end
redis.call('HSET', KEYS[1], 'verified', 'unverified', 'check_note', ARGV[1], 'checked_at', int(now_ms()))
return {'noted'}
