--[[ release_slot: the claim could not be sent; its place is free again.
  KEYS    as reserve_slot (1 to 6)
  ARGV    claim_id
  returns {'released'} | {'unknown'} ]]
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then return {'released'} end
return {'unknown'}
