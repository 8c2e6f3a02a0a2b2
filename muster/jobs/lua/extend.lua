--[[ extend: keep every claim a worker still holds, and say which they are.
  KEYS  1 claimed ZSET   2 job HASH   3 held SET of the worker
  ARGV  worker | visible_until_ms
  returns {id, token, cancel (0/1), ...} ]]
local held = redis.call('SMEMBERS', KEYS[3])
table.sort(held)
local answer = {}
for _, id in ipairs(held) do
  local text = redis.call('HGET', KEYS[2], id)
  local state = text and read(text)
  if state and state.status == 'claimed' and state.worker == ARGV[1] then
    redis.call('ZADD', KEYS[1], ARGV[2], id)
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = id, state.token, state.cancel
  else
    -- Released by visibility, where the holder's set is not known: it is tidied here.
    redis.call('SREM', KEYS[3], id)
  end
end
return answer
