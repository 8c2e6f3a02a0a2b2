--[[ settle: end claims without a result; the rule is muster.jobs.model.settle.
  KEYS  1 ready ZSET   2 delayed ZSET   3 claimed ZSET   4 job HASH   5 dedup HASH   6 stats HASH
        7 poisoned ZSET (finished_ms, id)   8 wake LIST   9 held SET of the worker, if one is meant
  ARGV  by (claims|worker|expired) | verdict | now_ms | first_retry_ms | longest_retry_ms | error ('' none) | worker,
        then for claims: id | token ...
  returns {status after, or '' where the token was dead, ...} ]]
local by, verdict, now, worker = ARGV[1], ARGV[2], ARGV[3], ARGV[7]
local ids, tokens = {}, {}
if by == 'claims' then
  for i = 8, #ARGV, 2 do ids[#ids + 1], tokens[#tokens + 1] = ARGV[i], ARGV[i + 1] end
elseif by == 'worker' then
  ids = redis.call('SMEMBERS', KEYS[9])
else
  ids = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1000)
end
local after = {}
for i, id in ipairs(ids) do
  local text = redis.call('HGET', KEYS[4], id)
  local state = text and read(text)
  local alive = state and state.status == 'claimed'
    and (by ~= 'claims' or state.token == tokens[i]) and (by ~= 'worker' or state.worker == worker)
  if alive then
    state.status = 'pending'
    if verdict == 'cancel' or state.cancel == '1' then state.status = 'cancelled'
    elseif verdict ~= 'return' and state.attempts >= state.most then state.status = 'poisoned' end
    redis.call('ZREM', KEYS[3], id)
    if by ~= 'expired' then redis.call('SREM', KEYS[9], id) end
    if state.status == 'pending' then
      state.worker, state.claimed = '', '0'
      if verdict == 'fail' then
        local pause = math.min(tonumber(ARGV[4]) * 2 ^ math.min(state.attempts - 1, 30), tonumber(ARGV[5]))
        state.run_at = string.format('%.0f', now + math.floor(pause))
        redis.call('ZADD', KEYS[2], state.run_at, id)
      else
        if verdict == 'return' then state.attempts = state.attempts - 1 end
        redis.call('ZADD', KEYS[1], -state.priority, id)
        wake(KEYS[8], redis.call('LLEN', KEYS[8]) + 1)
      end
    else
      state.finished = now
      if state.dedup ~= '' then redis.call('HDEL', KEYS[5], state.dedup) end
      if state.status == 'poisoned' then redis.call('ZADD', KEYS[7], now, id)
      else redis.call('HINCRBY', KEYS[6], 'cancelled', 1) end
    end
    redis.call('HSET', KEYS[4], id, write(state))
    if ARGV[6] ~= '' then redis.call('HSET', KEYS[4], id .. ':e', ARGV[6]) end
    after[#after + 1] = state.status
  elseif by == 'claims' then
    after[#after + 1] = ''
  elseif by == 'worker' then
    redis.call('SREM', KEYS[9], id)
  end
end
return after
