--[[ turn: hand in results and claim the next jobs, in one step.
  KEYS  1 ready ZSET   2 delayed ZSET   3 claimed ZSET (visible_until_ms, id)   4 job HASH   5 dedup HASH
        6 stats HASH   7 wake LIST   8 held SET of this worker
  ARGV  worker | now_ms | visible_until_ms | claims wanted | results, then per result: id | token | result ('' none)
  returns {{1 accepted, 0 late, ...}, {id, state, body, checkpoint, ...}} ]]
local function read(text) -- see push.lua for the fields
  local status, attempts, token, most, priority, claimed, finished, cancel, run_at, worker, dedup = string.match(
    text, '^(%a+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d) (%d+) ([^\n]*)\n(.*)$')
  return {status, tonumber(attempts), tonumber(token), tonumber(most), tonumber(priority), worker,
    tonumber(claimed), tonumber(finished), tonumber(cancel), dedup, tonumber(run_at)}
end
local function write(s)
  return s[1] .. ' ' .. s[2] .. ' ' .. s[3] .. ' ' .. s[4] .. ' ' .. s[5] .. ' ' .. s[7] .. ' ' .. s[8] .. ' '
    .. s[9] .. ' ' .. s[11] .. ' ' .. s[6] .. '\n' .. s[10]
end
local now, want = tonumber(ARGV[2]), tonumber(ARGV[4])
local accepted, claimed = {}, {}
for i = 6, 5 + 3 * tonumber(ARGV[5]), 3 do
  local id = ARGV[i]
  local state = redis.call('HGET', KEYS[4], id)
  state = state and read(state)
  if state and state[1] == 'claimed' and state[3] == tonumber(ARGV[i + 1]) then
    state[1], state[8] = 'done', now
    if ARGV[i + 2] == '' then
      redis.call('HSET', KEYS[4], id, write(state))
    else
      redis.call('HSET', KEYS[4], id, write(state), id .. ':r', ARGV[i + 2])
    end
    redis.call('ZREM', KEYS[3], id)
    redis.call('SREM', KEYS[8], id)
    redis.call('HINCRBY', KEYS[6], 'done', 1)
    if state[10] ~= '' then redis.call('HDEL', KEYS[5], state[10]) end
    accepted[#accepted + 1] = 1
  else
    redis.call('HINCRBY', KEYS[6], 'late', 1)
    accepted[#accepted + 1] = 0
  end
end
if want > 0 then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do
    local state = read(redis.call('HGET', KEYS[4], id))
    state[11] = 0
    redis.call('HSET', KEYS[4], id, write(state))
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[1], -state[5], id)
  end
  local due = redis.call('ZPOPMIN', KEYS[1], want)
  for i = 1, #due, 2 do
    local id = due[i]
    local job = redis.call('HMGET', KEYS[4], id, id .. ':b', id .. ':c')
    local state = read(job[1])
    state[1], state[2], state[3], state[6], state[7] = 'claimed', state[2] + 1, state[3] + 1, ARGV[1], now
    local text = write(state)
    redis.call('HSET', KEYS[4], id, text)
    redis.call('ZADD', KEYS[3], ARGV[3], id)
    redis.call('SADD', KEYS[8], id)
    local n = #claimed
    claimed[n + 1], claimed[n + 2], claimed[n + 3], claimed[n + 4] = id, text, job[2], job[3]
  end
  if #due == 0 then redis.call('DEL', KEYS[7]) end
end
return {accepted, claimed}
