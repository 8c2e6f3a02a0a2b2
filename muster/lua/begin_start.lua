--[[ begin_start: somebody wants this user running; decide whether a new start begins, and fence the old ones.
  KEYS[1] worker:desired:{u} HASH, for ever   KEYS[2] worker:epoch:{u}    INT, for ever
  KEYS[3] worker:active:{u}  HASH, leased     KEYS[4] worker:starting:{u} HASH, leased
  KEYS[5] worker:history:{u} LIST
  ARGV    cause (start|restart|repair|move) | issued_at_ms | command_id | credentials_ref or '' | lease_ms
          | seen_epoch (repair, move) | give_up_after | backoff_first_ms | backoff_max_ms | resumed_lease_ms
  returns {'begin', epoch, attempt, issued_at, command_id, credentials_ref}   start it now; a repeat of the
                                                                   same command gets the same epoch again
        | {'active', epoch}        a worker of the current epoch is live
        | {'starting', epoch}      another command is already starting it
        | {'superseded', want}     a newer command has been seen
        | {'moved', epoch}         repair, move: the epoch it saw is gone
        | {'failed', failures}     repair only: given up; only a person's start resets it ]]
local by_maintenance = ARGV[1] == 'repair' or ARGV[1] == 'move'
local cause, issued_at, command_id, credentials = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local desired = hash(KEYS[1])
local epoch = tonumber(redis.call('GET', KEYS[2]) or '0')
local mark_epoch = tonumber(redis.call('HGET', KEYS[3], 'epoch') or '-1')
local lease = hash(KEYS[4])
local lease_live = lease.epoch and tonumber(lease.epoch) == epoch

local function begin(at_epoch, attempt)
  local now = hash(KEYS[1])
  return {'begin', int(at_epoch), attempt, now.issued_at or '0', now.command_id or '', now.credentials_ref or ''}
end

if not by_maintenance and issued_at < tonumber(desired.issued_at or '0') then
  note(KEYS[5], 'superseded', epoch, cause .. ' ' .. command_id)
  return {'superseded', desired.want or ''}
end
if by_maintenance and desired.want ~= 'running' then return {'superseded', desired.want or ''} end
if lease_live and lease.command_id == command_id then
  -- Tried before: the lease, and with it the launch token, must outlast the next retry as well.
  if redis.call('PTTL', KEYS[4]) < tonumber(ARGV[10]) then redis.call('PEXPIRE', KEYS[4], ARGV[10]) end
  return begin(epoch, lease.attempt)
end
if by_maintenance and epoch ~= tonumber(ARGV[6]) then return {'moved', int(epoch)} end

-- A repeat of a restart that already did its work is a start: its worker is the live one.
local satisfied_by_live = cause == 'start' or cause == 'repair' or desired.command_id == command_id
local function remember()
  if by_maintenance then return end
  redis.call('HSET', KEYS[1], 'want', 'running', 'issued_at', int(issued_at), 'command_id', command_id,
    'failures', '0', 'retry_at', '0')
  redis.call('HDEL', KEYS[1], 'reason', 'missing_since')
  if credentials ~= '' then redis.call('HSET', KEYS[1], 'credentials_ref', credentials) end
end
if mark_epoch == epoch and satisfied_by_live then
  remember()
  return {'active', int(epoch)}
end
if lease_live and satisfied_by_live then
  remember()
  return {'starting', int(epoch)}
end

if cause == 'repair' then
  local failures = tonumber(desired.failures or '0') + 1
  if failures > tonumber(ARGV[7]) then
    local fenced = raise_epoch(KEYS[2], epoch)
    redis.call('HSET', KEYS[1], 'want', 'failed')
    redis.call('DEL', KEYS[4])
    note(KEYS[5], 'given up', fenced, int(failures - 1) .. ' failures in a row')
    return {'failed', int(failures - 1)}
  end
  local backoff = math.min(tonumber(ARGV[8]) * 2 ^ (failures - 1), tonumber(ARGV[9]))
  redis.call('HSET', KEYS[1], 'failures', int(failures), 'retry_at', int(now_ms() + backoff))
end
remember()
local raised = raise_epoch(KEYS[2], epoch)
redis.call('HDEL', KEYS[1], 'task_id', 'missing_since')
redis.call('DEL', KEYS[4])
redis.call('HSET', KEYS[4], 'epoch', int(raised), 'command_id', command_id, 'attempt', '0', 'cause', cause,
  'since', int(now_ms()))
redis.call('PEXPIRE', KEYS[4], ARGV[5])
note(KEYS[5], 'begin ' .. cause, raised, command_id)
if cause == 'restart' or cause == 'move' then tell_workers('SHUTDOWN', user_of(KEYS[1]), raised) end
return begin(raised, '0')
