--[[ accept_order: take an order for a user who is wanted running, and put it into the worker's inbox.
  One step, so that an accepted order is always both on record and in the inbox.
  KEYS[1] order:{u}:<id> HASH      KEYS[2] order:index:{u} ZSET id -> created_at   KEYS[3] worker:inbox:{u} STREAM
  KEYS[4] order:key:{u}:<key> STRING, leased: '<order id> <content>' of the first request with this key
  KEYS[5] worker:desired:{u} HASH
  ARGV    order_id | content (canonical, to tell a repeat from another order) | key_kept_s (0: there is no key)
          | kept_s | inbox_most | field | value | field | value ...
  returns {'accepted', order_id} | {'repeated', order_id}
        | {'other', order_id}     the key belongs to a different order
        | {'refused', want}       nobody wants this user running ('' if nobody ever did)
        | {'no_session'}          its worker was started without credentials, so it reads no inbox
        | {'full', entries} ]]
local known = redis.call('GET', KEYS[4])
if known then
  local cut = string.find(known, ' ', 1, true)
  local first = string.sub(known, 1, cut - 1)
  return {string.sub(known, cut + 1) == ARGV[2] and 'repeated' or 'other', first}
end
local desired = redis.call('HMGET', KEYS[5], 'want', 'credentials_ref')
if desired[1] ~= 'running' then return {'refused', desired[1] or ''} end
if (desired[2] or '') == '' then return {'no_session'} end
local waiting = redis.call('XLEN', KEYS[3])
if waiting >= tonumber(ARGV[5]) then return {'full', int(waiting)} end

local now, kept_s = now_ms(), tonumber(ARGV[4])
local record = {'order_id', ARGV[1], 'status', 'queued', 'final', '0', 'filled_qty', '0', 'created_at', int(now),
  'verified', 'unverified'}
for i = 6, #ARGV do record[#record + 1] = ARGV[i] end
redis.call('HSET', KEYS[1], unpack(record))
redis.call('EXPIRE', KEYS[1], kept_s)
redis.call('ZADD', KEYS[2], int(now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. int(now - kept_s * 1000))
redis.call('EXPIRE', KEYS[2], kept_s)
redis.call('XADD', KEYS[3], '*', 'do', 'place', 'order_id', ARGV[1])
if ARGV[3] ~= '0' then redis.call('SET', KEYS[4], ARGV[1] .. ' ' .. ARGV[2], 'EX', ARGV[3]) end
return {'accepted', ARGV[1]}
