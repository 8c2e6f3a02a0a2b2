--[[ cas_delete: remove a lock only while it has the value the caller saw.
  Its holder releases it this way; a successor clears the lock of a process it knows to be dead.
  KEYS[1] the lock  STRING, leased
  ARGV    value the lock must have
  returns {'deleted'} | {'missing'} | {'held', value of another holder} ]]
local value = redis.call('GET', KEYS[1])
if not value then
  return { 'missing' }
end
if value ~= ARGV[1] then
  return { 'held', value }
end
redis.call('DEL', KEYS[1])
return { 'deleted' }
