--[[ prelude: put before every script of this folder.
  Time is the server's own (TIME), so that no two hosts' clocks are ever compared.
  Numbers go back as integers written out: Lua would print an epoch as 1.8e+12. ]]
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function int(n) return string.format('%.0f', n) end

local function hash(key)
  local flat, map = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end

local function user_of(key) return string.match(key, '{(.*)}') end

-- One line of a user's time line, kept for `explain` and told to whoever watches.
local function note(history, event, epoch, detail)
  local at = int(now_ms())
  redis.call('LPUSH', history, table.concat({at, event, int(epoch), detail or ''}, '|'))
  redis.call('LTRIM', history, 0, 23)
  redis.call('PUBLISH', 'muster:events', cjson.encode({
    user_id = user_of(history), event = event, epoch = int(epoch), at = at, detail = detail or ''}))
end

-- Fencing numbers rise over lost writes too: at least by one, and at least to the server's time.
local function raise_epoch(key, current)
  local raised = math.max(current + 1, now_ms())
  redis.call('SET', key, int(raised))
  return raised
end

local function tell_workers(action, user, below_epoch)
  redis.call('PUBLISH', 'worker:control', cjson.encode({
    action = action, user_id = user, below_epoch = int(below_epoch)}))
end

-- Pool scripts: take out the workers and claims whose time is over, so that every count below is of the living.
local function expire_pool(keys, now)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', keys[1], '-inf', int(now))) do
    redis.call('ZREM', keys[1], worker)
    redis.call('HDEL', keys[4], worker)
    redis.call('HDEL', keys[5], worker)
  end
  redis.call('ZREMRANGEBYSCORE', keys[2], '-inf', int(now))
end

-- Live idle workers that run `version`: the only ones a claim can be given to.
local function idle_of(keys, version)
  local matching = {}
  for _, worker in ipairs(redis.call('ZRANGE', keys[1], 0, -1)) do
    if redis.call('HGET', keys[5], worker) == version then matching[#matching + 1] = worker end
  end
  return matching
end
