--[[ read_pool: count the living of a pool. Reads only: what has expired is left to the scripts that own it.
  KEYS[1] pool:idle:{p} ZSET   KEYS[2] pool:outstanding:{p} ZSET   KEYS[3] pool:launching:{p} ZSET
  KEYS[4] pool:config:{p} HASH
  returns {idle, outstanding, launching, wanted or '', target or '', version or ''} ]]
local t = redis.call('TIME')
local now = string.format('(%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local config = redis.call('HMGET', KEYS[4], 'wanted', 'target', 'version')
return {redis.call('ZCOUNT', KEYS[1], now, '+inf'), redis.call('ZCOUNT', KEYS[2], now, '+inf'),
  redis.call('ZCOUNT', KEYS[3], now, '+inf'), config[1] or '', config[2] or '', config[3] or ''}
