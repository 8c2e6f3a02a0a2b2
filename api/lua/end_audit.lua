--[[ end_audit: put the result of a change in the place of its intent. One entry stands for one change, and at no
  moment there is none, or two. Trimmed meanwhile: the whole entry is written all the same.
  KEYS[1] api:audit  STREAM, capped
  ARGV    id of the intent | length of the stream | who | role | action | target | reason | result
  returns {'ended', id} ]]
redis.call('XDEL', KEYS[1], ARGV[1])
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'at', ARGV[1], 'who', ARGV[3], 'role', ARGV[4],
  'action', ARGV[5], 'target', ARGV[6], 'reason', ARGV[7], 'result', ARGV[8])
return {'ended', id}
