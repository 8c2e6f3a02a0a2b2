--[[ trim: forget finished jobs that are too old, oldest first, a bounded number per call.
  KEYS  1 ids ZSET   2 job HASH   3 poisoned ZSET   4 stats HASH
  ARGV  done before_ms | poisoned before_ms | surplus (this many of the oldest go whatever their age) | after id | page
  returns {forgotten, surplus left, last id looked at ('' at the end)} ]]
local function read(text) -- see push.lua for the fields
  local status, attempts, token, most, priority, claimed, finished, cancel, run_at, worker, dedup = string.match(
    text, '^(%a+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d) (%d+) ([^\n]*)\n(.*)$')
  return {status, tonumber(attempts), tonumber(token), tonumber(most), tonumber(priority), worker,
    tonumber(claimed), tonumber(finished), tonumber(cancel), dedup, tonumber(run_at)}
end
local surplus, gone = tonumber(ARGV[3]), 0
local from = ARGV[4] == '' and '-' or '(' .. ARGV[4]
local page = redis.call('ZRANGEBYLEX', KEYS[1], from, '+', 'LIMIT', 0, tonumber(ARGV[5]))
for _, id in ipairs(page) do
  local state = read(redis.call('HGET', KEYS[2], id))
  if state[8] > 0 then
    local before = tonumber(state[1] == 'poisoned' and ARGV[2] or ARGV[1])
    if surplus > 0 or state[8] < before then
      redis.call('HDEL', KEYS[2], id, id .. ':b', id .. ':c', id .. ':r', id .. ':e', id .. ':p')
      redis.call('ZREM', KEYS[1], id)
      if redis.call('ZREM', KEYS[3], id) == 0 then redis.call('HINCRBY', KEYS[4], state[1], -1) end
      surplus, gone = surplus - 1, gone + 1
    end
  end
end
return {gone, math.max(surplus, 0), page[#page] or ''}
