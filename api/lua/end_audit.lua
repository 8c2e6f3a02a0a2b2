--[[ end_audit: put the result of a change in the place of its intent. One entry stands for one change, and at no
  moment there is none, or two. Trimmed meanwhile: the whole entry is written all the same. Sent again by a client
  that lost the answer: the entry is there already, among the newest.
  KEYS[1] api:audit  STREAM, capped
  ARGV    id of the intent | length of the stream | who | role | action | target | reason | result
  returns {'ended', id} ]]
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then
  for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', ARGV[1], 'COUNT', 100)) do
    if entry[2][1] == 'at' and entry[2][2] == ARGV[1] then return {'ended', entry[1]} end
  end
end
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'at', ARGV[1], 'who', ARGV[3], 'role', ARGV[4],
  'action', ARGV[5], 'target', ARGV[6], 'reason', ARGV[7], 'result', ARGV[8])
return {'ended', id}
