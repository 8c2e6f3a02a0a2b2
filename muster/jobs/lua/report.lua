--[[ report: save progress and checkpoint of a claim that is still alive.
  KEYS  1 job HASH
  ARGV  id | token | progress ('' keeps the old) | checkpoint ('' keeps the old)
  returns {'saved'} | {'dead'} ]]
local function read(text) -- see push.lua for the fields
  local status, attempts, token, most, priority, claimed, finished, cancel, run_at, worker, dedup = string.match(
    text, '^(%a+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d) (%d+) ([^\n]*)\n(.*)$')
  return {status, tonumber(attempts), tonumber(token), tonumber(most), tonumber(priority), worker,
    tonumber(claimed), tonumber(finished), tonumber(cancel), dedup, tonumber(run_at)}
end
local state = redis.call('HGET', KEYS[1], ARGV[1])
state = state and read(state)
if not state or state[1] ~= 'claimed' or state[3] ~= tonumber(ARGV[2]) then return {'dead'} end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], ARGV[1] .. ':p', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], ARGV[1] .. ':c', ARGV[4]) end
return {'saved'}
