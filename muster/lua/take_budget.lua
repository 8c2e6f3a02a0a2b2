--[[ take_budget: draw calls from a token bucket that all functions share; who matters less leaves more in it.
  KEYS[1] budget:{bucket} HASH
  ARGV    calls | burst | per_second | floor (tokens that must be left)
  returns {'granted'} | {'wait', ms} nothing was drawn ]]
local now = now_ms()
local calls, burst, rate, floor = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local seen = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = math.min(burst, tonumber(seen[1] or ARGV[2]) + math.max(0, now - tonumber(seen[2] or now)) * rate / 1000)
if tokens - calls < floor then return {'wait', int(math.ceil((floor + calls - tokens) * 1000 / rate))} end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.3f', tokens - calls), 'at', int(now))
redis.call('PEXPIRE', KEYS[1], 60000)
return {'granted'}
