--[[ drop_mark: the worker lets go. Only the holder can.
  KEYS    as beat_mark
  ARGV    epoch | worker_id | reason | final (1|0: retries cannot help, only a person's start does)
  returns {'dropped'} | {'not_holder'} ]]
local mark = redis.call('HMGET', KEYS[3], 'worker_id', 'epoch')
if mark[1] ~= ARGV[2] or mark[2] ~= ARGV[1] then return {'not_holder'} end
redis.call('DEL', KEYS[3], KEYS[6])
if tonumber(redis.call('GET', KEYS[2]) or '0') == tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'reason', ARGV[3])
  if ARGV[4] == '1' then
    raise_epoch(KEYS[2], tonumber(ARGV[1]))
    redis.call('HSET', KEYS[1], 'want', 'failed')
  end
end
note(KEYS[5], 'mark dropped', tonumber(ARGV[1]), ARGV[3])
return {'dropped'}
