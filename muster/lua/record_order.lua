--[[ record_order: write down the broker's truth about one order; it only moves forward.
  An end beats no end, then more filled beats less; a repeat or an older answer changes nothing.
  KEYS[1] order:{u}:<order_id> HASH   KEYS[2] worker:history:{u} LIST
  ARGV    verified [| status | final (1|0) | filled_qty | average_price | updated_at | broker_order_id]
  returns {'recorded'} | {'older'} | {'differs', was} recorded, and what the worker had reported was something else ]]
redis.call('HSET', KEYS[1], 'verified', ARGV[1], 'checked_at', int(now_ms()))
if #ARGV == 1 then return {'recorded'} end
local known = redis.call('HMGET', KEYS[1], 'status', 'final', 'filled_qty', 'reported')
local final, filled = tonumber(ARGV[3]), tonumber(ARGV[4])
local known_final, known_filled = tonumber(known[2] or '0'), tonumber(known[3] or '0')
if known[1] and (known_final > final or (known_final == final and known_filled > filled)) then return {'older'} end
if known[1] == ARGV[2] and known_filled == filled then return {'recorded'} end
redis.call('HSET', KEYS[1], 'status', ARGV[2], 'final', ARGV[3], 'filled_qty', ARGV[4], 'average_price', ARGV[5],
  'updated_at', ARGV[6], 'broker_order_id', ARGV[7])
note(KEYS[2], 'order ' .. ARGV[2], 0, KEYS[1])
if ARGV[3] == '1' and known[4] and known[4] ~= ARGV[2] then return {'differs', known[4]} end
return {'recorded'}
