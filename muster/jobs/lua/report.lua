--[[ report: save progress and checkpoint of a claim that is still alive.
  KEYS  1 job HASH
  ARGV  id | token | progress ('' keeps the old) | checkpoint ('' keeps the old)
  returns {'saved'} | {'dead'} ]]
local text = redis.call('HGET', KEYS[1], ARGV[1])
local state = text and read(text)
if not state or state.status ~= 'claimed' or state.token ~= ARGV[2] then return {'dead'} end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], ARGV[1] .. ':p', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], ARGV[1] .. ':c', ARGV[4]) end
return {'saved'}
