--[[ accept_command: the moment a command counts from, on the clock of its user's slot: one clock for all API
  processes. With an idempotency key the command is remembered together with that moment, so that a repeat is
  the same command at the same moment and never overtakes what came in between.
  KEYS[1] api:idempotency:{u}:<key>  STRING, leased
  ARGV    command (JSON) | keep_s (0: there is no key, remember nothing)
  returns {'new', issued_at_ms} | {'repeated', issued_at_ms, command} ]]
local known = redis.call('GET', KEYS[1])
if known then
  local cut = string.find(known, ' ', 1, true)
  return {'repeated', string.sub(known, 1, cut - 1), string.sub(known, cut + 1)}
end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
if ARGV[2] ~= '0' then redis.call('SET', KEYS[1], now .. ' ' .. ARGV[1], 'EX', ARGV[2]) end
return {'new', now}
