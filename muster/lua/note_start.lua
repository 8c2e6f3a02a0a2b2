--[[ note_start: a worker became ready; one line for whoever looks at how long starts take.
  KEYS[1] worker:starts:{all} LIST, newest first, capped
  ARGV    user | epoch | via | cause | issued_at_ms | kept
  returns {'noted'} ]]
redis.call('LPUSH', KEYS[1], table.concat({int(now_ms()), ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[1]}, '|'))
redis.call('LTRIM', KEYS[1], 0, tonumber(ARGV[6]) - 1)
return {'noted'}
