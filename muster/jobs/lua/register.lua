--[[ register: workers are known from now on, in one status, as many as the pool lacks to have `total` live.
  KEYS  1 info HASH (worker, JSON)   2 status HASH   3 beat HASH (worker, seconds)   4 meta HASH   5 pool HASH
  ARGV  status | now | pool ('' any) | total (-1: no limit), then per worker: id | info
  returns {id registered, ...}
  With a total, a place that one of these workers holds already is its own and does not count against it, and
  one that was declared lost is left out. ]]
local room = tonumber(ARGV[4])
local limited = room >= 0
if limited then
  local own = {}
  for i = 5, #ARGV, 2 do own[ARGV[i]] = true end
  local status = redis.call('HGETALL', KEYS[2])
  for i = 1, #status, 2 do
    local live = status[i + 1] == 'starting' or status[i + 1] == 'active' or status[i + 1] == 'terminating'
    if live and not own[status[i]] and redis.call('HGET', KEYS[5], status[i]) == ARGV[3] then room = room - 1 end
  end
else
  room = #ARGV
end
local taken = {}
for i = 5, #ARGV, 2 do
  if #taken >= room then break end
  if not (limited and redis.call('HGET', KEYS[2], ARGV[i]) == 'lost') then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[1])
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[2])
    redis.call('HDEL', KEYS[4], ARGV[i])
    redis.call('HSET', KEYS[5], ARGV[i], ARGV[3])
    taken[#taken + 1] = ARGV[i]
  end
end
return taken
