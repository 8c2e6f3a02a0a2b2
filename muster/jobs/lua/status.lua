--[[ status: set a worker's status. A lost worker stays lost; `lost` itself only if it has not beaten since;
  `terminating` only if it has not left.
  KEYS  1 status HASH   2 beat HASH
  ARGV  worker | status | last beat as read ('' any)
  returns {'set'} | {'refused'} ]]
local status = redis.call('HGET', KEYS[1], ARGV[1])
if not status or status == 'lost' then return {'refused'} end
if ARGV[2] == 'terminating' and status == 'terminated' then return {'refused'} end
if ARGV[3] ~= '' then
  if status == 'terminated' then return {'refused'} end
  if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then return {'refused'} end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'set'}
