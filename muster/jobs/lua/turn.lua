--[[ turn: hand in results and claim the next jobs, in one step; one command per key for the whole batch.
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
local now, want, results = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local accepted, claimed = {}, {}
if results > 0 then
  local ids = {}
  for n = 1, results do ids[n] = ARGV[3 + 3 * n] end
  local states = redis.call('HMGET', KEYS[4], unpack(ids))
  local done, fields, keys, ended = {}, {}, {}, {}
  for n, id in ipairs(ids) do
    local state = states[n] and read(states[n])
    if state and state[1] == 'claimed' and state[3] == tonumber(ARGV[4 + 3 * n]) and not ended[id] then
      ended[id] = true
      state[1], state[8] = 'done', now
      fields[#fields + 1], fields[#fields + 2] = id, write(state)
      if ARGV[5 + 3 * n] ~= '' then
        fields[#fields + 1], fields[#fields + 2] = id .. ':r', ARGV[5 + 3 * n]
      end
      if state[10] ~= '' then keys[#keys + 1] = state[10] end
      done[#done + 1] = id
      accepted[n] = 1
    else
      accepted[n] = 0
    end
  end
  if #done > 0 then
    redis.call('HSET', KEYS[4], unpack(fields))
    redis.call('ZREM', KEYS[3], unpack(done))
    redis.call('SREM', KEYS[8], unpack(done))
    redis.call('HINCRBY', KEYS[6], 'done', #done)
  end
  if #keys > 0 then redis.call('HDEL', KEYS[5], unpack(keys)) end
  if #done < results then redis.call('HINCRBY', KEYS[6], 'late', results - #done) end
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
  if #due == 0 then
    redis.call('DEL', KEYS[7]) -- nothing to wake anybody for
  else
    local ids, names, fields, scores = {}, {}, {}, {}
    for i = 1, #due, 2 do
      local id = due[i]
      ids[#ids + 1] = id
      names[#names + 1], names[#names + 2], names[#names + 3] = id, id .. ':b', id .. ':c'
    end
    local jobs = redis.call('HMGET', KEYS[4], unpack(names))
    for n, id in ipairs(ids) do
      local state = read(jobs[3 * n - 2])
      state[1], state[2], state[3], state[6], state[7] = 'claimed', state[2] + 1, state[3] + 1, ARGV[1], now
      local text = write(state)
      fields[2 * n - 1], fields[2 * n] = id, text
      scores[2 * n - 1], scores[2 * n] = ARGV[3], id
      claimed[4 * n - 3], claimed[4 * n - 2], claimed[4 * n - 1], claimed[4 * n] = id, text, jobs[3 * n - 1], jobs[3 * n]
    end
    redis.call('HSET', KEYS[4], unpack(fields))
    redis.call('ZADD', KEYS[3], unpack(scores))
    redis.call('SADD', KEYS[8], unpack(ids))
  end
end
return {accepted, claimed}
