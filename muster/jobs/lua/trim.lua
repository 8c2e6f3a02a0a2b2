--[[ trim: forget finished jobs that are too old, oldest first, a bounded number per call.
  KEYS  1 ids ZSET   2 job HASH   3 poisoned ZSET   4 stats HASH
  ARGV  done before_ms | poisoned before_ms | surplus (this many of the oldest go whatever their age) | after id | page
  returns {forgotten, surplus left, last id looked at ('' at the end)} ]]
local surplus, gone = tonumber(ARGV[3]), 0
local from = ARGV[4] == '' and '-' or '(' .. ARGV[4]
local page = redis.call('ZRANGEBYLEX', KEYS[1], from, '+', 'LIMIT', 0, tonumber(ARGV[5]))
for _, id in ipairs(page) do
  local state = read(redis.call('HGET', KEYS[2], id))
  local finished = tonumber(state.finished)
  if finished > 0 then
    local before = tonumber(state.status == 'poisoned' and ARGV[2] or ARGV[1])
    if surplus > 0 or finished < before then
      redis.call('HDEL', KEYS[2], id, id .. ':b', id .. ':c', id .. ':r', id .. ':e', id .. ':p')
      redis.call('ZREM', KEYS[1], id)
      redis.call('ZREM', KEYS[3], id)
      if state.status == 'cancelled' then redis.call('HINCRBY', KEYS[4], 'cancelled', -1) end
      surplus, gone = surplus - 1, gone + 1
    end
  end
end
return {gone, math.max(surplus, 0), page[#page] or ''}
