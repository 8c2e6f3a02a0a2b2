--[[ plan_pool: bring the pool to its target in one step that two managers cannot both do.
  Old versions and surplus workers are taken out of the semaphore; launches in flight are counted; the places
  that are missing are reserved under launch ids, each until its deadline.
  KEYS    as reserve_slot (1 to 6)
  ARGV    target | version | launch_deadline_ms | run_id | most_launches
  returns {idle, launching, outstanding, retired, overdue, launch_ids}
          retired: worker_id, task_id, ...   overdue: launch_id, task_id or '', ... (their tasks should be stopped) ]]
local now = now_ms()
local target, version = tonumber(ARGV[1]), ARGV[2]
redis.call('HSET', KEYS[6], 'target', ARGV[1], 'version', version)
expire_pool(KEYS, now)

local overdue = {}
for _, launch in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', int(now))) do
  overdue[#overdue + 1] = launch
  overdue[#overdue + 1] = redis.call('HGET', KEYS[4], launch) or ''
  redis.call('ZREM', KEYS[3], launch)
  redis.call('HDEL', KEYS[4], launch)
end

local retired = {}
local function retire(worker)
  retired[#retired + 1] = worker
  retired[#retired + 1] = redis.call('HGET', KEYS[4], worker) or ''
  redis.call('ZREM', KEYS[1], worker)
  redis.call('HDEL', KEYS[4], worker)
  redis.call('HDEL', KEYS[5], worker)
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if redis.call('HGET', KEYS[5], worker) ~= version then retire(worker) end
end
local outstanding = redis.call('ZCARD', KEYS[2])
local idle = idle_of(KEYS, version)
for i = 1, #idle - outstanding - target do retire(idle[i]) end

local living = redis.call('ZCARD', KEYS[1])
local launching = redis.call('ZCARD', KEYS[3])
local launch_ids = {}
for i = 1, math.min(target - living - launching, tonumber(ARGV[5])) do
  local id = ARGV[4] .. '-' .. int(i)
  redis.call('ZADD', KEYS[3], int(now + tonumber(ARGV[3])), id)
  launch_ids[#launch_ids + 1] = id
end
return {int(living), int(launching), int(outstanding), retired, overdue, launch_ids}
