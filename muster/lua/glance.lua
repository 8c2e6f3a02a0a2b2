--[[ glance: is this user's worker well? Most are, and a sweep needs no more of them than their task.
  KEYS[1] worker:active:{u} HASH, leased   KEYS[2] worker:epoch:{u} INT, for ever   KEYS[3] worker:state:{u} STRING, leased
  ARGV    what a published state contains while its session is open
  returns the task id: a mark of the current epoch (so no stop has come since), ready, session open
        | ''  look closer ]]
local mark = redis.call('HMGET', KEYS[1], 'task_id', 'epoch', 'ready_at')
if not mark[3] or tonumber(mark[2]) < tonumber(redis.call('GET', KEYS[2]) or '0') then return '' end
local state = redis.call('GET', KEYS[3])
if not state or not string.find(state, ARGV[1], 1, true) then return '' end
return mark[1]
