--[[ settle: end claims without a result; the rule is muster.jobs.model.settle.
  KEYS  1 ready ZSET   2 delayed ZSET   3 claimed ZSET   4 job HASH   5 dedup HASH   6 stats HASH
        7 poisoned ZSET (finished_ms, id)   8 wake LIST   9 held SET of the worker, if one is meant
  ARGV  by (claims|worker|expired) | verdict | now_ms | first_retry_ms | longest_retry_ms | error ('' none) | worker,
        then for claims: id | token ...
  returns {status after, or '' where the token was dead, ...} ]]
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
local by, verdict, now, worker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[7]
local ids, tokens = {}, {}
if by == 'claims' then
  for i = 8, #ARGV, 2 do ids[#ids + 1], tokens[#tokens + 1] = ARGV[i], tonumber(ARGV[i + 1]) end
elseif by == 'worker' then
  ids = redis.call('SMEMBERS', KEYS[9])
else
  ids = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1000)
end
local after = {}
for i, id in ipairs(ids) do
  local state = redis.call('HGET', KEYS[4], id)
  state = state and read(state)
  local alive = state and state[1] == 'claimed'
    and (by ~= 'claims' or state[3] == tokens[i]) and (by ~= 'worker' or state[6] == worker)
  if alive then
    local status = 'pending'
    if verdict == 'cancel' or state[9] == 1 then status = 'cancelled'
    elseif verdict ~= 'return' and state[2] >= state[4] then status = 'poisoned' end
    state[1] = status
    redis.call('ZREM', KEYS[3], id)
    if by ~= 'expired' then redis.call('SREM', KEYS[9], id) end
    if status == 'pending' then
      state[6], state[7] = '', 0
      if verdict == 'fail' then
        state[11] = now + math.floor(math.min(tonumber(ARGV[4]) * 2 ^ math.min(state[2] - 1, 30), tonumber(ARGV[5])))
        redis.call('ZADD', KEYS[2], state[11], id)
      else
        if verdict == 'return' then state[2] = state[2] - 1 end
        redis.call('ZADD', KEYS[1], -state[5], id)
        if redis.call('LLEN', KEYS[8]) < 64 then redis.call('RPUSH', KEYS[8], '1') end
      end
    else
      state[8] = now
      if state[10] ~= '' then redis.call('HDEL', KEYS[5], state[10]) end
      if status == 'poisoned' then redis.call('ZADD', KEYS[7], now, id)
      else redis.call('HINCRBY', KEYS[6], 'cancelled', 1) end
    end
    redis.call('HSET', KEYS[4], id, write(state))
    if ARGV[6] ~= '' then redis.call('HSET', KEYS[4], id .. ':e', ARGV[6]) end
    after[#after + 1] = status
  elseif by == 'claims' then
    after[#after + 1] = ''
  elseif by == 'worker' then
    redis.call('SREM', KEYS[9], id)
  end
end
return after
