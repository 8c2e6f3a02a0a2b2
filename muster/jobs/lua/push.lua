--[[ push: add jobs; a dedup key that is pending or claimed gives the job it already has.
  KEYS  1 ready ZSET (-priority, id)   2 delayed ZSET (run_at_ms, id)   3 job HASH   4 dedup HASH
        5 ids ZSET (0, id)   6 seq INT, never expires   7 wake LIST
  ARGV  now_us, then per job: dedup ('' for none) | run_at_ms (0: now) | max_retries | priority | body
  returns {id, ...} in order ]]
local seq = tonumber(redis.call('GET', KEYS[6]) or '0')
local now = tonumber(ARGV[1])
local ids, woken = {}, 0
local fields, known, ready = {}, {}, {}
local function flush() -- Lua hands over no more than some thousand values at once
  if #fields > 0 then
    redis.call('HSET', KEYS[3], unpack(fields))
    redis.call('ZADD', KEYS[5], unpack(known))
  end
  if #ready > 0 then redis.call('ZADD', KEYS[1], unpack(ready)) end
  fields, known, ready = {}, {}, {}
end
for i = 2, #ARGV, 5 do
  local dedup, run_at, priority = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local id = dedup ~= '' and redis.call('HGET', KEYS[4], dedup)
  if not id then
    seq = math.max(seq + 1, now)
    id = string.format('%.0f', seq)
    local f, k, r = #fields, #known, #ready
    fields[f + 1] = id
    fields[f + 2] = 'pending 0 0 0 0 0 ' .. run_at .. ' ' .. ARGV[i + 2] .. ' ' .. priority .. ' \n' .. dedup
    fields[f + 3], fields[f + 4] = id .. ':b', ARGV[i + 4]
    known[k + 1], known[k + 2] = '0', id
    if run_at ~= '0' then
      redis.call('ZADD', KEYS[2], run_at, id)
    else
      ready[r + 1], ready[r + 2] = -priority, id
      woken = woken + 1
    end
    if dedup ~= '' then redis.call('HSET', KEYS[4], dedup, id) end
    if f > 4000 then flush() end
  end
  ids[#ids + 1] = id
end
flush()
redis.call('SET', KEYS[6], string.format('%.0f', seq))
if woken > 0 then wake(KEYS[7], woken) end
return ids
