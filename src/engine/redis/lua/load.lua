-- Puts what the ledger has of accounts where nothing is yet. KEYS: meta, then
-- for each account itself, its open holds and its request ids; then the holds'
-- records. ARGV[1]: epoch, accounts, records; for each account its state, how
-- many open holds and request ids, then these.

local call, read = redis.call, struct.unpack
local epoch, n, records = read('<dI2I4', ARGV[1])
local meta = call('GET', KEYS[1])
if not meta then return 4 end
local held, _, _, _, closed = read('<ddddB', meta)
if held ~= epoch or closed ~= 0 then return 4 end
local IDLE, next_arg = 26 * 3600000, 2
for i = 1, n do
  local k = i * 3 - 1
  local opens, marks = read('<I4I4', ARGV[next_arg + 1])
  if call('EXISTS', KEYS[k]) == 0 then
    call('SET', KEYS[k], ARGV[next_arg], 'PX', IDLE)
    call('UNLINK', KEYS[k + 1], KEYS[k + 2])
    local at = next_arg + 2
    for j = 1, opens do
      call('ZADD', KEYS[k + 1], read('<d', ARGV[at]), ARGV[at + 1])
      at = at + 2
    end
    if opens > 0 then call('PEXPIRE', KEYS[k + 1], 2 * IDLE) end
    for j = 1, marks do
      call('HSET', KEYS[k + 2], ARGV[at], ARGV[at + 1])
      at = at + 2
    end
    if marks > 0 then call('PEXPIRE', KEYS[k + 2], 2 * IDLE) end
  end
  next_arg = next_arg + 2 + 2 * (opens + marks)
end
-- A record that is here already is newer.
for i = 1, records do
  call('SET', KEYS[1 + n * 3 + i], ARGV[next_arg], 'PX', IDLE, 'NX')
  next_arg = next_arg + 1
end
return 0
