--[[ read_user: everything about one user at one moment.
  KEYS    as beat_mark
  ARGV    with_history (1|0)
  returns {now_ms, epoch, desired, mark, mark_pttl, lease, lease_pttl, state or '', history} ]]
local history = {}
if ARGV[1] == '1' then history = redis.call('LRANGE', KEYS[5], 0, -1) end
return {int(now_ms()), redis.call('GET', KEYS[2]) or '0', redis.call('HGETALL', KEYS[1]),
  redis.call('HGETALL', KEYS[3]), redis.call('PTTL', KEYS[3]), redis.call('HGETALL', KEYS[4]),
  redis.call('PTTL', KEYS[4]), redis.call('GET', KEYS[6]) or '', history}
