--[[ begin_order: write ahead that an order goes to the broker now. From here on it may be there.
  KEYS[1] order:{u}:<id> HASH   KEYS[2] worker:epoch:{u} INT   KEYS[3] order:open:{u} SET of ids, sent and not final
  ARGV    epoch | send_within_ms | kept_s
  returns {'send', field, value ...}     the first attempt
        | {'resend', field, value ...}   somebody began before: ask the broker first
        | {'late', field, value ...}     waited too long to be sent; if it was begun before, ask the broker first
        | {'known', status}              executed already, or cancelled before it was sent
        | {'unknown'} | {'fenced', epoch} ]]
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current > tonumber(ARGV[1]) then return {'fenced', int(current)} end
local order = hash(KEYS[1])
if not order.status then return {'unknown'} end
if order.status ~= 'queued' and order.status ~= 'sending' then return {'known', order.status} end
local answer = {order.status == 'queued' and 'send' or 'resend'}
local now = now_ms()
if now - tonumber(order.created_at) > tonumber(ARGV[2]) then
  answer = {'late'}
else
  redis.call('HSET', KEYS[1], 'status', 'sending')
  redis.call('SADD', KEYS[3], order.order_id)
  redis.call('EXPIRE', KEYS[3], ARGV[3])
end
for field, value in pairs(order) do
  answer[#answer + 1] = field
  answer[#answer + 1] = value
end
return answer
