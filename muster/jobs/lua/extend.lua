--[[ extend: keep every claim a worker still holds, and say which they are.
  KEYS  1 claimed ZSET   2 job HASH   3 held SET of the worker
  ARGV  worker | visible_until_ms
  returns {id, token, cancel (0/1), ...} ]]
local function read(text) -- see push.lua for the fields
  local status, attempts, token, most, priority, claimed, finished, cancel, run_at, worker, dedup = string.match(
    text, '^(%a+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d) (%d+) ([^\n]*)\n(.*)$')
  return {status, tonumber(attempts), tonumber(token), tonumber(most), tonumber(priority), worker,
    tonumber(claimed), tonumber(finished), tonumber(cancel), dedup, tonumber(run_at)}
end
local held = redis.call('SMEMBERS', KEYS[3])
table.sort(held)
local answer = {}
for _, id in ipairs(held) do
  local state = redis.call('HGET', KEYS[2], id)
  state = state and read(state)
  if state and state[1] == 'claimed' and state[6] == ARGV[1] then
    redis.call('ZADD', KEYS[1], ARGV[2], id)
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = id, state[3], state[9]
  else
    -- Released by visibility, where the holder's set is not known: it is tidied here.
    redis.call('SREM', KEYS[3], id)
  end
end
return answer
