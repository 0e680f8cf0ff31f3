-- Renews a lease and reserves more: the twin of step::extend. ARGV from 2:
-- figures, the operation's id, the hold's id, its body as it will be, receipts,
-- charges (3), then what it occupied in each account.

local version, edge, asked_at, taking, lease, lives_until, m, size = read('<dddBddI2I2', ARGV[2])
local operation, hold, before = ARGV[3], ARGV[4], found[2]
if before then
  local _, held_version, _, last_operation = read('<BI4Bc16', before)
  if last_operation == operation then return answer(REPEATED, before) end
  if held_version ~= version then return { CHANGED, now, seq } end
else
  if version ~= 0 then return { CHANGED, now, seq } end
  if not call('ZSCORE', accounts[1].open, ARGV[10]) then return { NOT_OPEN, now, seq } end
end
if seq - drained >= longest then return { OVERLOADED } end
if (now >= edge) ~= (asked_at >= edge) then return { AGAIN, now, seq } end
read_charges(7, m, m)
for i = 1, n do project(accounts[i], i) end

-- A receipt: what it occupies (0 nothing, 1 tokens, 2 a slot), its account,
-- reserved, window.
local R = { read('<' .. rep('BBddd', size), ARGV[6]) }
local values, members, failing = {}, {}, false
for i = 1, n do members[i] = hold end
for r = 0, size * 5 - 5, 5 do
  local c, k = r * 4, #values
  local reserved, start, finish = R[r + 3], R[r + 4], R[r + 5]
  local low, high = C[c + 1], C[c + 2]
  if r < m * 5 then
    local index, amount = C[c + 3], C[c + 18]
    local a = accounts[index]
    local v, o = a.v, nil
    if amount > 0 then o = cell_at(a, low, high) end
    if o then
      local refused, left, most = false, stock(a, o, c)
      if C[c + 7] == 0 and C[c + 8] ~= 0 then
        if start ~= NONE and v[o + 3] == 1 and C[c + 8] == 2 then
          left = math.max((v[o + 5] == start and v[o + 6] ~= NEVER and most or C[c + 11]) - taken_of(a, o, start), 0)
        end
        local whole = math.min(reserved + amount, MAX)
        if amount > math.max(left - C[c + 20], 0) or whole > math.max(most - C[c + 20], 0) then
          failing, refused = true, taking == 0
          look_ahead(a)
        end
      end
      if not refused then
        local held = C[c + 6]
        local kind = v[o + 3]
        reserved = math.min(reserved + amount, MAX)
        if kind == 0 then
          change_level(v, o, -amount)
          if held == 1 then add(v, o + 8, amount) end
        elseif kind == 2 then
          v[o + 5] = v[o + 5] + 1
        elseif kind == 3 then
          if C[c + 8] == 4 then take_log(a, o, amount, C[c + 11]) end
        elseif start ~= NONE then
          adopt(v, o, start, finish, amount)
          local t, i = window_at(a, o, start)
          if t then add(t, held == 1 and i + 1 or i, amount) end
        elseif C[c + 8] == 2 then
          start, finish = take_window(v, o, amount, held, C[c + 9], C[c + 14], C[c + 15], now)
          start, finish = start or NONE, finish or NONE
        end
      end
    end
  end
  values[k + 1], values[k + 2], values[k + 3] = reserved, start, finish
  local occupies, index = R[r + 1], R[r + 2]
  if index > 0 and (occupies == 2 or (occupies == 1 and reserved > 0)) then
    members[index] = members[index] .. pack('<I4I4d', low, high, occupies == 2 and 1 or reserved)
  end
end
if failing and taking == 0 then return answer(REFUSED, '') end

local expires = math.max(edge, math.min(plus(now, lease), lives_until))
for i = 1, n do
  close_hold(accounts[i], ARGV[9 + i], edge)
  open_hold(accounts[i], members[i], expires)
  write(accounts[i], i == 1)
end
local record = pack('<BI4Bc16ddddddI2', 1, version + 1, 3, operation, now, 0, 0, 0, lease, 0, #values / 3)
  .. pack('<' .. rep('ddd', #values / 3), unpack(values)) .. ARGV[5]
call('SET', KEYS[2], record, 'PX', IDLE)
leave('x', 'h', record)
return answer(DONE, shows == 1 and record or '')
