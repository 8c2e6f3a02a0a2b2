--[[ abort_start: the launch failed for certain. Either the lease is given back, or the same start may try again
  under a new launch token (attempt + 1): a phantom of the failed launch then still has the right epoch,
  and take_mark lets only one of the two act.
  KEYS    as begin_start
  ARGV    epoch | again (1|0) | lease_ms | reason
  returns {'again', attempt} | {'given_back'} | {'stale', epoch} ]]
local epoch = tonumber(ARGV[1])
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
if current ~= epoch then return {'stale', int(current)} end
redis.call('HSET', KEYS[1], 'reason', ARGV[4])
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[4]) == 1 then
  local attempt = redis.call('HINCRBY', KEYS[4], 'attempt', 1)
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
  note(KEYS[5], 'launch failed', epoch, ARGV[4])
  return {'again', int(attempt)}
end
redis.call('DEL', KEYS[4])
note(KEYS[5], 'start aborted', epoch, ARGV[4])
return {'given_back'}
