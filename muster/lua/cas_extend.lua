--[[ cas_extend: its holder, and nobody else, makes a lock live longer.
  KEYS[1] the lock  STRING, leased
  ARGV    value of the holder | ttl_ms
  returns {'extended'} | {'missing'} | {'held', value of the other holder} ]]
local value = redis.call('GET', KEYS[1])
if not value then
  return { 'missing' }
end
if value ~= ARGV[1] then
  return { 'held', value }
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 'extended' }
