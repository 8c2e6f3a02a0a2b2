--[[ turn: hand in results and claim the next jobs, in one step; one command per key for the whole batch.
  KEYS  1 ready ZSET   2 delayed ZSET   3 claimed ZSET (visible_until_ms, id)   4 job HASH   5 dedup HASH
        6 stats HASH   7 wake LIST   8 held SET of this worker
  ARGV  worker | now_ms | visible_until_ms | claims wanted | look for due delayed jobs first (0/1),
        then per result: id | token | result ('' none)
  returns {{1 accepted, 0 late, ...}, {id, state, body, checkpoint ('' none), ...}} ]]
local now, want, results = ARGV[2], tonumber(ARGV[4]), (#ARGV - 5) / 3
local due = {}
if want > 0 then
  if ARGV[5] == '1' then promote(KEYS[1], KEYS[2], KEYS[4], now) end
  due = redis.call('ZPOPMIN', KEYS[1], want)
  if #due == 0 then
    if ARGV[5] == '0' then
      promote(KEYS[1], KEYS[2], KEYS[4], now)
      due = redis.call('ZPOPMIN', KEYS[1], want)
    end
    if #due == 0 then redis.call('DEL', KEYS[7]) end -- nothing to wake anybody for
  end
end
if results == 0 and #due == 0 then return {{}, {}} end
local names = {}
for n = 1, results do names[n] = ARGV[3 + 3 * n] end
for i = 1, #due, 2 do
  local n = results + i
  names[n], names[n + 1] = due[i], due[i] .. ':b'
end
local found = redis.call('HMGET', KEYS[4], unpack(names))
local accepted, claimed, fields = {}, {}, {}
if results > 0 then
  local done, keys, ended, f = {}, {}, {}, 0
  for n = 1, results do
    local id, token, result, state = names[n], ARGV[4 + 3 * n], ARGV[5 + 3 * n], found[n]
    local head = 'claimed 0 ' .. token .. ' '
    if state and not ended[id] and string.sub(state, 1, #head) == head then
      ended[id] = true
      fields[f + 1], fields[f + 2] = id, 'done ' .. now .. string.sub(state, 10)
      f = f + 2
      if result ~= '' then
        fields[f + 1], fields[f + 2] = id .. ':r', result
        f = f + 2
      end
      if string.find(state, '\n', 1, true) < #state then keys[#keys + 1] = read(state).dedup end
      done[#done + 1] = id
      accepted[n] = 1
    else
      accepted[n] = 0
    end
  end
  if #done > 0 then
    redis.call('ZREM', KEYS[3], unpack(done))
    redis.call('SREM', KEYS[8], unpack(done))
  end
  if #keys > 0 then redis.call('HDEL', KEYS[5], unpack(keys)) end
  if #done < results then redis.call('HINCRBY', KEYS[6], 'late', results - #done) end
end
if #due > 0 then
  local middle, ids, scores, f = ' ' .. now .. ' 0 0 ', {}, {}, #fields
  for i = 1, #due, 2 do
    local id, c = due[i], 2 * i - 2
    -- A ready job is pending and due, so all but these is known; see the prelude.
    local token, attempts, limits, dedup = string.match(
      found[results + i], '^pending 0 (%d+) (%d+) 0 0 0 (%d+ %-?%d+) (\n.*)$')
    local text = 'claimed 0 ' .. token + 1 .. ' ' .. attempts + 1 .. middle .. limits .. ' ' .. ARGV[1] .. dedup
    fields[f + i], fields[f + i + 1] = id, text
    scores[i], scores[i + 1] = ARGV[3], id
    ids[#ids + 1] = id
    claimed[c + 1], claimed[c + 2], claimed[c + 3] = id, text, found[results + i + 1]
    -- Only a job that was claimed before can have a checkpoint.
    claimed[c + 4] = token ~= '0' and redis.call('HGET', KEYS[4], id .. ':c') or ''
  end
  redis.call('ZADD', KEYS[3], unpack(scores))
  redis.call('SADD', KEYS[8], unpack(ids))
end
if #fields > 0 then redis.call('HSET', KEYS[4], unpack(fields)) end
return {accepted, claimed}
