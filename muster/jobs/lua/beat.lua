--[[ beat: a worker says it is alive; one that is lost or unknown is told so.
  KEYS  1 status HASH   2 beat HASH   3 meta HASH (worker, JSON object)
  ARGV  worker | now | metadata JSON ('' none)
  returns {status} ]]
local status = redis.call('HGET', KEYS[1], ARGV[1])
if not status or status == 'lost' then return {'lost'} end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if ARGV[3] ~= '' then
  local meta = cjson.decode(redis.call('HGET', KEYS[3], ARGV[1]) or '{}')
  for key, value in pairs(cjson.decode(ARGV[3])) do meta[key] = value ~= cjson.null and value or nil end
  if next(meta) then redis.call('HSET', KEYS[3], ARGV[1], cjson.encode(meta)) else redis.call('HDEL', KEYS[3], ARGV[1]) end
end
return {status}
