--[[ record_order: write down what is known of an order at the broker. It only moves forward, whoever says it,
  however often and in whichever order: an end beats no end, then more filled beats less.
  The worker says what it was told; a check says what the broker answers when asked, and that is the truth:
  where the two contradict each other the broker wins and `differs` says what the worker had reported.
  An end that the worker hears of when the checks have given up (the horizon, the dead-letter queue) asks for one
  more: through the inbox, in this same step, so that no crash loses it.
  KEYS[1] order:{u}:<id> HASH   KEYS[2] order:open:{u} SET of ids, sent and not final
  KEYS[3] worker:inbox:{u} STREAM
  ARGV    source (worker|check) | kept_s | verified ('' from a worker) | reason (of the end, or of the check)
          | status ('' the broker does not have it) | final (1|0) | filled_qty | average_price | updated_at_ms
          | broker_order_id ('' the worker knows that it never got there)
  returns {'recorded'} | {'older'} | {'unknown'} nobody accepted such an order
        | {'settled'}            the broker has nothing of it, as the record says
        | {'differs', reported}  recorded; seen for the first time ]]
local by_check, verified, reason = ARGV[1] == 'check', ARGV[3], ARGV[4]
local status, final, filled, broker_id = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[10]
local order = hash(KEYS[1])
if not order.status then return {'unknown'} end
local known_final, known_filled = tonumber(order.final), tonumber(order.filled_qty)
local placed = (order.broker_order_id or '') ~= ''
local now = int(now_ms())

local function write(...)
  redis.call('HSET', KEYS[1], ...)
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end

if not by_check then
  local was_final = tonumber(order.reported_final or '-1')
  if final > was_final or (final == was_final and filled >= tonumber(order.reported_filled)) then
    order.reported, order.reported_final, order.reported_filled = status, int(final), ARGV[7]
    write('reported', status, 'reported_final', ARGV[6], 'reported_filled', ARGV[7])
  end
end

local answer, newer = 'recorded', false
if status == '' then
  if order.final == '1' and not placed then
    answer, verified, reason = 'settled', 'verified', ''
  elseif not placed then
    answer = 'older' -- it is on its way: the worker has not reported it yet
  end
elseif broker_id == '' then
  newer = known_final == 0 and not placed -- a refused attempt ends nothing that the broker is known to have
elseif not placed then
  newer = true -- the broker's first word, also about an order that was believed refused
elseif by_check and final == 1 and order.verified ~= 'verified' then
  newer = order.status ~= status or known_filled ~= filled
elseif not by_check and order.verified == 'verified' and known_final == 1 and final == 1 then
  newer = false -- the broker was asked how it ended; a report that says otherwise is counted, not believed
else
  newer = final > known_final or (final == known_final and filled > known_filled)
  if not newer and (final ~= known_final or known_filled ~= filled) then answer = 'older' end
end

if newer then
  write('status', status, 'final', ARGV[6], 'filled_qty', ARGV[7], 'average_price', ARGV[8], 'updated_at', ARGV[9],
    'broker_order_id', broker_id, 'reason', by_check and '' or reason)
  redis.call(final == 1 and 'SREM' or 'SADD', KEYS[2], order.order_id)
  redis.call('PUBLISH', 'muster:events', cjson.encode({
    user_id = user_of(KEYS[2]), event = 'order ' .. status, epoch = '0', at = now, detail = order.order_id}))
  if not by_check and broker_id ~= '' and final == 1 and order.verified == 'unverified' and order.checked_at then
    redis.call('XADD', KEYS[3], '*', 'do', 'check', 'order_id', order.order_id)
  end
end

-- Two checks may cross: the older one does not take back what the newer one has verified.
if by_check and not (answer == 'older' and order.verified == 'verified') then
  write('verified', verified, 'checked_at', now, 'check_note', reason)
end

-- A contradiction is a report that no later report could have made good.
local contradicted = false
if by_check and status == '' then
  contradicted = placed
elseif by_check and order.reported then
  local reported_final, reported_filled = order.reported_final == '1', tonumber(order.reported_filled)
  local refused = reported_final and not placed
  contradicted = refused or (final == 1 and reported_filled > filled)
    or (final == 1 and reported_final and (order.reported ~= status or reported_filled ~= filled))
elseif not by_check and order.verified == 'verified' and final == 1 and known_final == 1 then
  contradicted = order.status ~= status or known_filled ~= filled
end
if contradicted and not order.differs then
  local reported = (order.reported or order.status) .. ' ' .. (order.reported_filled or order.filled_qty)
  write('differs', reported)
  return {'differs', reported}
end
return {answer}
