--[[ list_orders: one page of a user's order ids, newest first. New orders do not shift the pages behind them.
  KEYS[1] order:index:{u} ZSET id -> created_at
  ARGV    after (id of the last row of the page before, '' for the first page) | limit
  returns {'page', id ...} | {'gone'} no such id in the list any more ]]
local from = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[1], ARGV[1])
  if not rank then return {'gone'} end
  from = rank + 1
end
return {'page', unpack(redis.call('ZREVRANGE', KEYS[1], from, from + tonumber(ARGV[2]) - 1))}
