-- Everything up to a number is on record. KEYS: meta, stream, records of holds
-- that have finished. ARGV: epoch, number, how long those stay, in ms.

local meta = redis.call('GET', KEYS[1])
if not meta then return 0 end
local epoch, seq, drained, clock, closed = struct.unpack('<ddddB', meta)
local number = tonumber(ARGV[2])
if epoch ~= tonumber(ARGV[1]) or number <= drained or number > seq then return 0 end
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', number + 1))
redis.call('SET', KEYS[1], struct.pack('<ddddB', epoch, seq, number, clock, closed))
for i = 3, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
return 1
