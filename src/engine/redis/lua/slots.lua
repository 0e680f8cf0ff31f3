-- What becomes of a slot as a whole. KEYS: meta. ARGV: what to do, epoch, and
-- a number for it. Answers whether it was done.

local what, epoch, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local meta = redis.call('GET', KEYS[1])
local held, seq, drained, clock, closed = 0, 0, 0, -1, 0
if meta then held, seq, drained, clock, closed = struct.unpack('<ddddB', meta) end
if what == 'open' then
  if held >= epoch then return 0 end
  held, seq, drained, closed = epoch, number, number, 0
elseif not meta or held > epoch or (held < epoch and what ~= 'close') then
  return 0
elseif what == 'close' then
  closed = 1
elseif what == 'clock' then
  clock = number
end
redis.call('SET', KEYS[1], struct.pack('<ddddB', held, seq, drained, clock, closed))
return 1
