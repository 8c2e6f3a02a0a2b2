--[[ cancel_order: end an order that was not sent yet, or ask the worker to have it ended by the broker.
  KEYS[1] order:{u}:<id> HASH   KEYS[2] worker:inbox:{u} STREAM   KEYS[3] worker:desired:{u} HASH
  ARGV    (none)
  returns {'cancelled'}          it never went to the broker
        | {'asked'}              the worker has the request; a repeat changes nothing
        | {'ended', status} | {'unknown'}
        | {'refused', want}      there is no worker to ask the broker ]]
local order = hash(KEYS[1])
if not order.status then return {'unknown'} end
if order.final == '1' then return {'ended', order.status} end
local now = int(now_ms())
if order.status == 'queued' then
  -- begin_order comes before or after this, never in between: nobody will send it.
  redis.call('HSET', KEYS[1], 'status', 'cancelled', 'final', '1', 'updated_at', now, 'verified', 'verified',
    'reason', 'cancelled before it was sent')
  redis.call('PUBLISH', 'muster:events', cjson.encode({
    user_id = user_of(KEYS[2]), event = 'order cancelled', epoch = '0', at = now, detail = order.order_id}))
  return {'cancelled'}
end
local want = redis.call('HGET', KEYS[3], 'want') or ''
if want ~= 'running' then return {'refused', want} end
if not order.cancel_asked_at then
  redis.call('HSET', KEYS[1], 'cancel_asked_at', now)
  redis.call('XADD', KEYS[2], '*', 'do', 'cancel', 'order_id', order.order_id)
end
return {'asked'}
