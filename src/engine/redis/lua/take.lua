-- Takes all charges of a check, or none: the twin of step::take. ARGV from 2:
-- figures, the hold's id, the request id's digest, the hold's body, charges.
-- `dry`: 1 takes nothing, 2 leaves no trace of a refusal.

if found[2] then
  -- The caller repeats itself: the answer was lost.
  return answer(REPEATED, found[2])
end
if seq - drained >= longest then return { OVERLOADED } end
local lease, longest_hold, least, most, taking, happened, dry, pool, finished, m, rank, ticket, node, class, bulk =
  read('<ddddBdBBdI2dddBB', ARGV[2])
local hold, digest = ARGV[3], ARGV[4]
if digest ~= '' and dry ~= 1 then
  local mark = call('HGET', requests, digest)
  if mark then
    local id, over = read('<c16d', mark)
    if over == FAR or plus(over, DAY) > now then return { KNOWN, now, seq, id } end
  end
end
-- The row after the charges is what reserving costs in credits.
read_charges(6, m, m + 1)
for i = 1, n do project(accounts[i], i) end

-- The most output, at least `least`, for which a charge takes no more than
-- `room`.
local function largest(c, room, output)
  local d = c / 4
  local fixed, rest, slope, part, unit = demands[d + 1], demands[d + 2], demands[d + 3], demands[d + 4], demands[d + 5]
  local guess = floor(((room - fixed) * unit - rest) / (slope * unit + part))
  guess = math.max(least, math.min(guess, output))
  while guess > least and amount_for(c, guess, least, most) > room do guess = guess - 1 end
  while guess < output and amount_for(c, guess + 1, least, most) <= room do guess = guess + 1 end
  return guess
end

-- Whether somebody in the line goes before this call.
local function goes_first(line)
  local first, there = nodes_of(line)
  local real
  for at = first, #line, WAITER do
    local r, t, d, deadline, size = read('<ddddB', line, at)
    if r > rank or (r == rank and (t > ticket or (t == ticket and d >= node))) then return false end
    if deadline > now and (size <= class or now - r >= PATIENCE) then
      real = real or real_time()
      if (there[d] or 0) > real then return true end
    end
  end
  return false
end

-- Who waits for the pool, and whether one of them goes first.
local line_key = KEYS[2 * n + 5]
local line = line_key and call('GET', line_key)
local blocked = line and goes_first(line) or false
local output, failing = most, blocked
if blocked then look_ahead(accounts[pool]) end
if taking ~= 2 then
  for c = 0, m * 20 - 20, 20 do
    local o = place_of[c]
    if o and C[c + 4] == 1 and C[c + 7] == 0 then
      local a = accounts[C[c + 3]]
      local room = math.max(stock(a, o, c) - C[c + 20], 0)
      if C[c + 18] > room then
        failing = true
        look_ahead(a)
      elseif amount_for(c, output, least, most) > room then
        output = largest(c, room, output)
      end
    end
  end
end
if failing and taking == 0 then
  if dry == 0 then
    for c = 0, m * 20 - 20, 20 do
      local o, a = place_of[c], accounts[C[c + 3]]
      if o and C[c + 4] == 1 and C[c + 7] == 2 and o < a.known * 9 and a.v[o + 4] < 4294967295 then
        local room = math.max(stock(a, o, c) - C[c + 20], 0)
        if C[c + 18] > room then
          -- A tally for people and no part of any decision: no event.
          local before, where = a.counted or a.raw, 50 + o / 9 * 53
          local count = read('<I4', before, where + 1)
          a.counted = before:sub(1, where) .. pack('<I4', count + 1) .. before:sub(where + 5)
        end
      end
    end
    for i = 1, n do
      if accounts[i].counted then call('SET', accounts[i].key, accounts[i].counted, 'KEEPTTL') end
    end
  end
  return answer(REFUSED, line and pack('<B', blocked and 1 or 0) .. line:sub(1, 48) or '')
end
if dry == 1 then return answer(DONE, '') end
output = failing and most or math.min(math.max(output, least), most)

-- Books use that happened at an earlier moment: used, never held.
local function use_at(a, o, c, amount)
  local v, span, s1, s2, s3, s4 = a.v, C[c + 9], C[c + 14], C[c + 15], C[c + 16], C[c + 17]
  local begun, past = v[o + 6] ~= NEVER, a.past[o] or {}
  local last = past[#past - 2]
  if span == 3 then return take_window(v, o, amount, 0, span, s1, s2, now) end
  if span == 1 then return settle_first(a, o, happened, amount, span, s1, s2, s3, s4) end
  if span == 0 then
    if happened >= (begun and v[o + 5] or s1) then return take_window(v, o, amount, 0, span, s1, s2, now) end
  elseif begun and happened >= v[o + 5] then
    return take_window(v, o, amount, 0, span, s1, s2, now)
  elseif not begun and not (last and happened < last) then
    return settle_first(a, o, happened, amount, span, s1, s2, s3, s4)
  end
  for i = 1, #past, 4 do
    if past[i] <= happened and happened < past[i + 1] then
      add(past, i + 2, amount)
      return past[i], past[i + 1]
    end
  end
end

local final, values, members = 0, {}, {}
for i = 1, n do members[i] = hold end
for c = 0, m * 20 - 20, 20 do
  local o = place_of[c]
  if o and C[c + 4] == 1 then
    local index, enforce, held = C[c + 3], C[c + 7], C[c + 6]
    local a, amount, start, finish = accounts[index], amount_for(c, output, least, most), nil, nil
    local v = a.v
    local kind = v[o + 3]
    if enforce == 2 and taking ~= 2 then
      local room = math.max(stock(a, o, c) - C[c + 20], 0)
      if C[c + 18] > room and v[o + 4] < 4294967295 then v[o + 4] = v[o + 4] + 1 end
    end
    if kind == 0 then
      change_level(v, o, -amount)
      if taking ~= 2 and held == 1 then
        add(v, o + 8, amount)
        if amount > 0 then members[index] = members[index] .. pack('<I4I4d', C[c + 1], C[c + 2], amount) end
      end
    elseif kind == 1 then
      if C[c + 8] == 2 then
        if taking == 2 then
          start, finish = use_at(a, o, c, amount)
        else
          start, finish = take_window(v, o, amount, held, C[c + 9], C[c + 14], C[c + 15], now)
        end
      end
      if final == 0 and amount > 0 and enforce == 0 and index ~= pool then
        if stock(a, o, c) <= C[c + 20] then final = 1 end
      end
    elseif kind == 3 then
      if C[c + 8] == 4 then start, finish = take_log(a, o, amount, C[c + 11]) end
    elseif taking ~= 2 then
      if amount > 0 then v[o + 5] = v[o + 5] + 1 end
      members[index] = members[index] .. pack('<I4I4d', C[c + 1], C[c + 2], 1)
    end
    local k = #values
    values[k + 1], values[k + 2], values[k + 3] = amount, start or NONE, finish or NONE
  end
end

local lives_until = plus(now, longest_hold)
local expires = math.min(plus(now, lease), lives_until)
local record = pack('<BI4Bc16ddddddI2', 1, 1, 1, hold, now, output, final, amount_for(m * 20, output, least, most),
  lease, longest_hold, #values / 3) .. pack('<' .. rep('ddd', #values / 3), unpack(values)) .. ARGV[5]
for i = 1, n do
  if finished == NONE then open_hold(accounts[i], members[i], expires) end
  write(accounts[i], i == 1)
end
call('SET', KEYS[2], record, 'PX', IDLE)
if digest ~= '' then remember(digest, hold, finished == NONE and FAR or finished) end
leave('t', 'h', record)
if line and ticket ~= NO_TICKET then put_line(line_key, without(line, rank, ticket, node)) end
return answer(DONE, shows == 1 and record or '')
