-- What every script that changes something begins with.
--
-- KEYS: meta, the hold's record, the accounts (n), their open holds (n), the
-- stream, request ids. ARGV[1]: the head below; ARGV[2]: the operation's own.
-- Answers begin with a code; anything but DONE, REFUSED and REPEATED has
-- changed nothing.

local DONE, REFUSED, KNOWN, MISSING, UNSURE, CLOCK, OVERLOADED, MOVED, AGAIN, CHANGED, NOT_OPEN, REPEATED =
  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

local pack, read, call, rep, floor = struct.pack, struct.unpack, redis.call, string.rep, math.floor
-- The largest amount; units a token; the deepest debt in units; the last
-- instant; the end of a window that has not begun; no instant at all.
local MAX, UNIT, DEBT, FAR, NEVER, NONE =
  9007199254740991, 60000, -3e15, 253402300799999, -9223372036854775808, math.huge

local epoch, known, now, longest, n, shows = read('<ddddBB', ARGV[1])
local found = call('MGET', unpack(KEYS, 1, 2 + n))
local stream, requests = KEYS[2 * n + 3], KEYS[2 * n + 4]
if not found[1] then return { UNSURE } end
local slot_epoch, seq, drained, clock, closed = read('<ddddB', found[1])
if slot_epoch ~= epoch or closed ~= 0 or seq < known then return { UNSURE } end
-- Only test tenants have a clock of their own.
if clock < 0 then
  local time = call('TIME')
  local ms = time[1] * 1000 + floor(time[2] / 1000)
  if now > ms + 250 or now < ms - 2000 then return { CLOCK, ms } end
end

