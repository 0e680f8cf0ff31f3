-- Ends a hold, or its lease before the time: the twin of step::finish and
-- step::lapse. ARGV from 2: figures, the operation's id, the hold's id, the
-- hold as it was (where no record of it is here), its body as it will be,
-- receipts, the digest of its request id, charges (3), then what it occupies
-- in each account.

local version, edge, asked_at, lapses, counted, runs, releases, admitted, m, size = read('<dddBBBBdI2I2', ARGV[2])
local operation, hold, before = ARGV[3], ARGV[4], found[2]
if before then
  local _, held_version, _, last_operation = read('<BI4Bc16', before)
  if last_operation == operation then return answer(REPEATED, before) end
  if held_version ~= version then return { CHANGED, now, seq } end
else
  if version ~= 0 then return { CHANGED, now, seq } end
  if counted == 0 and not call('ZSCORE', accounts[1].open, ARGV[12]) then return { NOT_OPEN, now, seq } end
  before = ARGV[5]
end
if (now >= edge) ~= (asked_at >= edge) then return { AGAIN, now, seq } end
read_charges(9, m, m)
for i = 1, n do project(accounts[i], i) end

-- A receipt: account (0: not here), the cell's id (low, high), held, how a
-- window would open (0: not), reserved, window, its length, what is counted.
local R = { read('<' .. rep('BI4I4BBddddd', size), ARGV[7]) }
for r = 0, size * 10 - 10, 10 do
  local a = accounts[R[r + 1]]
  local o = a and cell_at(a, R[r + 2], R[r + 3])
  if o then
    local v, held, reserved, actual = a.v, R[r + 4], R[r + 6], R[r + 10]
    local kind = v[o + 3]
    if kind == 0 then
      if lapses == 0 or held == 1 then
        refill(v, o, now)
        if held == 1 and (lapses == 1 or runs == 1) then v[o + 8] = math.max(v[o + 8] - reserved, 0) end
        if lapses == 0 then change_level(v, o, reserved - actual) end
      end
    elseif kind == 2 then
      if lapses == 1 or runs == 1 then v[o + 5] = math.max(v[o + 5] - 1, 0) end
    elseif kind == 3 then
      if lapses == 0 and R[r + 7] ~= NONE then
        settle_log(a, o, R[r + 7], R[r + 8], reserved, actual, releases)
      end
    elseif lapses == 0 then
      local start = R[r + 7]
      if start ~= NONE then
        adopt(v, o, start, R[r + 8], actual)
        local t, k = window_at(a, o, start)
        if t then
          local from = held == 1 and counted == 0 and k + 1 or k
          t[from] = math.max(t[from] - reserved, 0)
          add(t, k, actual)
        end
      elseif R[r + 5] > 0 then
        settle_first(a, o, admitted, actual, R[r + 5], R[r + 9], 0, 0, 0)
      else
        local c = charge_on(R[r + 1], o)
        if c and C[c + 8] == 2 then
          settle_first(a, o, admitted, actual, C[c + 9], C[c + 14], C[c + 15], C[c + 16], C[c + 17])
        end
      end
    end
  end
end

for i = 1, n do
  if edge ~= NONE then close_hold(accounts[i], ARGV[11 + i], edge) end
  if lapses == 1 and i == 1 then open_hold(accounts[1], ARGV[12], now) end
  write(accounts[i], i == 1)
end
local record = pack('<BI4Bc16ddddddI2', 1, version + 1, 2, operation, now, 0, 0, 0, 0, 0, 0) .. ARGV[6]
call('SET', KEYS[2], record, 'PX', IDLE)
if lapses == 0 and ARGV[8] ~= '' then remember(ARGV[8], hold, now) end
-- Only a correction takes something back from what was counted.
if counted == 1 then
  leave('f', 'h', record, 'b', before)
else
  leave('f', 'h', record)
end
return answer(DONE, shows == 1 and record or '')
