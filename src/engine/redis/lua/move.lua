-- Moves a user's account to another name. KEYS: as everywhere, for the accounts
-- `from` and `to`, whose request ids the last is; then those of `from`, then the
-- records of the holds that go along. ARGV from 2: both accounts as they were
-- read, what `to` becomes ('': nothing is moved, that is noted), how many open
-- holds there were, the records as they were and as they will be.

local IDLE, from, to = 26 * 3600000, KEYS[3], KEYS[4]
if found[3] ~= ARGV[2] or found[4] ~= ARGV[3] then return { CHANGED } end
local mine, records = KEYS[9], (#ARGV - 5) / 2
if call('ZCARD', KEYS[5]) ~= tonumber(ARGV[5]) then return { CHANGED } end
for i = 1, records do
  if call('GET', KEYS[9 + i]) ~= ARGV[4 + 2 * i] then return { CHANGED } end
end
if ARGV[4] == '' then
  if #found[4] == 1 then call('UNLINK', to) end
  call('SET', from, 'M', 'PX', IDLE)
  return { DONE, now, seq }
end
call('SET', to, ARGV[4], 'PX', IDLE)
call('UNLINK', KEYS[6])
if call('EXISTS', KEYS[5]) == 1 then call('RENAME', KEYS[5], KEYS[6]) end
local marks = call('HGETALL', mine)
for i = 1, #marks, 2 do
  if #marks[i] == 8 and call('HEXISTS', requests, marks[i]) == 0 then
    call('HSET', requests, marks[i], marks[i + 1])
  end
end
call('UNLINK', mine)
if call('EXISTS', requests) == 1 then call('PEXPIRE', requests, 2 * IDLE) end
call('SET', from, 'M', 'PX', IDLE)
seq = seq + 1
local event = { 'XADD', stream, string.format('%.0f-0', seq), 'k', 'm' }
for i = 1, records do
  call('SET', KEYS[9 + i], ARGV[5 + 2 * i], 'PX', IDLE)
  event[#event + 1], event[#event + 2] = 'm', ARGV[5 + 2 * i]
end
local k = #event
event[k + 1], event[k + 2], event[k + 3], event[k + 4] = from, '', to, ARGV[4]
call(unpack(event))
call('SET', KEYS[1], pack('<ddddB', epoch, seq, drained, clock, 0))
return { DONE, now, seq }
