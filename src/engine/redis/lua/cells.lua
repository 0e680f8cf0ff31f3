-- The cells' arithmetic: the twin of domain/cell and of Account::project.
--
-- A cell is nine numbers from v[o + 1]: its id (low, high), its kind, what it
-- would have refused, and
--   0 bucket: capacity, refill, level, held, at
--   1 window: start, end, used, held, how many ended ones are kept
--   2 slots: in use
--   3 rolling: limit, length of the window, used, 0, how many entries the log has
-- What a window or a rolling limit has besides is in the account's `past`, by o.
-- A charge is twenty numbers from C[c + 1]: the cell's id (low, high), account,
-- asked, switches, held, enforce (0 hard, 1 soft, 2 shadow), figures (0 kept,
-- 1 bucket, 2 window, 3 slots, 4 rolling), span (0 calendar, 1 tiles, 2 session, 3
-- lifetime), extra, most, refill, since, span's figures (4), the amounts for
-- the least and for the most output, what must be left behind.
-- Every figure is a whole number below 2^53, or compared with one only.

local C, extras, demands, charges, place_of = nil, {}, nil, 0, {}

local function plus(at, ms)
  at = at + ms
  return at < 0 and 0 or at > FAR and FAR or at
end

local function refill(v, o, time)
  local elapsed = time - v[o + 9]
  if elapsed <= 0 then return end
  local room = (v[o + 5] - v[o + 8]) * UNIT - v[o + 7]
  if room > 0 then
    local gained = elapsed * v[o + 6]
    v[o + 7] = v[o + 7] + (gained < room and gained or room)
  end
  v[o + 9] = time
end

local function switch(v, o, most, rate, since, time)
  if most == v[o + 5] and rate == v[o + 6] then return end
  refill(v, o, since < time and since or time)
  v[o + 7] = v[o + 7] + (most - v[o + 5]) * UNIT
  v[o + 5], v[o + 6] = most, rate
end

local function change_level(v, o, tokens)
  local level = v[o + 7] + tokens * UNIT
  local ceiling = (v[o + 5] - v[o + 8]) * UNIT
  if level < DEBT then level = DEBT end
  if ceiling < DEBT then ceiling = DEBT end
  v[o + 7] = level < ceiling and level or ceiling
end

-- What follows is needed seldom: changes of figures, windows that end, grants.

-- The changes of a charge's figures after `at`: most, refill and since of each.
local function steps_after(c, at)
  local kind, x = C[c + 8], extras[C[c + 10]]
  if kind ~= 1 and kind ~= 2 then return {} end
  local back = { C[c + 13], C[c + 12], C[c + 11] }
  local limit = C[c + 13]
  if x then
    local steps, from = x[1], x[2]
    for i = #steps - 2, 1, -3 do
      local since = steps[i + 2]
      if since < from then since = from end
      if since < limit then limit = since end
      back[#back + 1], back[#back + 2], back[#back + 3] = limit, steps[i + 1], steps[i]
      if limit <= at then break end
    end
  end
  local steps = {}
  for i = #back, 1, -1 do steps[#steps + 1] = back[i] end
  return steps
end

-- Brings a bucket to `now` through lease ends and changes of figures.
local function advance(v, o, c, ends)
  local steps = C[c + 5] == 1 and steps_after(c, v[o + 9]) or {}
  local i = 1
  for k = 1, ends and #ends or 0, 2 do
    local time = ends[k]
    while steps[i] and steps[i + 2] <= time do
      switch(v, o, steps[i], steps[i + 1], steps[i + 2], now)
      i = i + 3
    end
    refill(v, o, time)
    v[o + 8] = math.max(v[o + 8] - ends[k + 1], 0)
  end
  for k = i, #steps, 3 do switch(v, o, steps[k], steps[k + 1], steps[k + 2], now) end
  refill(v, o, now)
end

-- Whether no lease of the account runs.
local function is_quiet(a)
  if a.last_end > now and not a.surely then
    local last = call('ZREVRANGE', a.open, 0, 0, 'WITHSCORES')
    a.last_end, a.surely, a.more = tonumber(last[2]) or 0, true, last
  end
  return a.last_end <= now
end

local function keep_past(a, o)
  local v, past = a.v, a.past[o]
  if not past then
    past = {}
    a.past[o] = past
  end
  local k = #past
  if k > 0 and past[k - 3] == v[o + 5] then return end
  if k == 32 then
    for _ = 1, 4 do table.remove(past, 1) end
    k = 28
  end
  past[k + 1], past[k + 2], past[k + 3], past[k + 4] = v[o + 5], v[o + 6], v[o + 7], v[o + 8]
end

-- Turns a window that has ended by `at`; answers its end and what was gone.
local function roll(a, o, span, s1, s2, s3, s4, at, keeps)
  local v = a.v
  if not keeps and span ~= 2 then a.past[o], v[o + 9] = nil, 0 end
  local ended = v[o + 6]
  if ended == NEVER or at < ended then return end
  if keeps or span == 2 then keep_past(a, o) end
  local taken = v[o + 7] + v[o + 8]
  v[o + 7], v[o + 8] = 0, 0
  if span == 0 then
    local earliest = plus(ended, s4)
    if s1 >= earliest then
      v[o + 5], v[o + 6] = s1, s2
    else
      v[o + 5], v[o + 6] = ended, s2 >= earliest and s2 or s3
    end
  elseif span == 1 then
    local start = v[o + 5] + floor((at - v[o + 5]) / s1) * s1
    v[o + 5], v[o + 6] = start, start + s1
  elseif span == 2 then
    v[o + 5], v[o + 6] = NEVER, NEVER
  end
  return ended, taken < MAX and taken or MAX
end

local function gone_of(a, id)
  local spent = a.spent
  for i = 1, #spent, 2 do
    if spent[i] == id then return spent[i + 1], i end
  end
  return 0, nil
end

-- What grants add to a charge's limit now.
local function granted(a, c)
  local x = extras[C[c + 10]]
  local sum = 0
  local grants = x and x[4] or {}
  for i = 1, #grants, 4 do
    if grants[i + 2] <= now and (grants[i + 3] < 0 or now < grants[i + 3]) then
      local left = grants[i + 1] - gone_of(a, grants[i])
      if left > 0 then sum = sum + left end
      if sum > MAX then sum = MAX end
    end
  end
  return sum
end

-- Takes for good what a window that is over had beyond its limit. The grants
-- come in the order in which they pay.
local function pay(a, grants, due, at)
  for i = 1, #grants, 4 do
    if due > 0 and grants[i + 2] <= at and (grants[i + 3] < 0 or at < grants[i + 3]) then
      local gone, where = gone_of(a, grants[i])
      local paid = math.min(due, math.max(grants[i + 1] - gone, 0))
      if paid > 0 then
        if not where then
          where = #a.spent + 1
          a.spent[where] = grants[i]
        end
        a.spent[where + 1] = math.min(gone + paid, MAX)
        due = due - paid
      end
    end
  end
end

-- Brings a window to `now` through the rules its borders had.
local function turn(a, o, c)
  local keeps, x = not is_quiet(a), extras[C[c + 10]]
  local grants = x and x[4] or {}
  local function through(at, span, s1, s2, s3, s4)
    local ended, taken = roll(a, o, span, s1, s2, s3, s4, at, keeps)
    if not ended or #grants == 0 then return end
    local last, limit = ended - 1, nil
    local steps = steps_after(c, last)
    for i = #steps - 2, 1, -3 do
      if steps[i + 2] <= last then
        limit = steps[i]
        break
      end
    end
    if limit then pay(a, grants, math.max(taken - limit, 0), last) end
  end
  local spans = x and x[3] or {}
  for i = 1, #spans, 6 do
    if spans[i] > now then break end
    through(spans[i], spans[i + 1], spans[i + 2], spans[i + 3], spans[i + 4], spans[i + 5])
  end
  through(now, C[c + 9], C[c + 14], C[c + 15], C[c + 16], C[c + 17])
end

-- A rolling limit's log: instants and amounts. See domain/cell/rolling.rs.

local PARTS, ENTRIES = 50, 128

-- Leaves the first `from` of a log's numbers out.
local function cut(a, o, from)
  local log, rest = a.past[o], {}
  for i = from + 1, #log do rest[#rest + 1] = log[i] end
  a.past[o] = #rest > 0 and rest or nil
  if #rest == 0 then a.v[o + 7], a.v[o + 9] = 0, 0 end
end

-- Drops what has left the window.
local function advance_log(a, o)
  local v, log = a.v, a.past[o]
  if not log then return end
  local left, gone, sum = now - v[o + 6], 0, 0
  while gone < #log and log[gone + 1] <= left do
    sum = math.min(sum + log[gone + 2], MAX)
    gone = gone + 2
  end
  if gone > 0 then
    v[o + 7] = math.max(v[o + 7] - sum, 0)
    cut(a, o, gone)
  end
end

-- Makes one of neighbours that are `most` at most together.
local function merge_log(log, most)
  local kept = 1
  for i = 3, #log, 2 do
    if log[kept + 1] + log[i + 1] <= most then
      log[kept], log[kept + 1] = log[i], log[kept + 1] + log[i + 1]
    else
      kept = kept + 2
      log[kept], log[kept + 1] = log[i], log[i + 1]
    end
  end
  for i = #log, kept + 2, -1 do log[i] = nil end
end

local function add_log(a, o, amount)
  if amount == 0 then return end
  local v, log = a.v, a.past[o] or {}
  a.past[o] = log
  local most = floor(v[o + 5] / PARTS)
  if most * PARTS > v[o + 5] then most = most - 1 end
  if #log >= ENTRIES * 2 then merge_log(log, most) end
  local k = #log
  if k > 0 and (k >= ENTRIES * 2 or log[k - 1] >= now or log[k] + amount <= most) then
    log[k - 1], log[k] = math.max(log[k - 1], now), math.min(log[k] + amount, MAX)
  else
    log[k + 1], log[k + 2] = now, amount
  end
  v[o + 7] = math.min(v[o + 7] + amount, MAX)
end

-- Takes by the figures of now; answers the window of the take.
local function take_log(a, o, amount, limit)
  a.v[o + 5] = limit
  add_log(a, o, amount)
  return now, plus(now, a.v[o + 6])
end

local function settle_log(a, o, start, finish, reserved, actual, releases)
  local v = a.v
  advance_log(a, o)
  if actual > reserved then return add_log(a, o, actual - reserved) end
  local log, left = a.past[o], reserved - actual
  if releases == 0 or now >= finish or not log then return end
  local kept = {}
  for i = 1, #log, 2 do
    local sum = log[i + 1]
    if log[i] >= start then
      local part = math.min(left, sum)
      sum, left = sum - part, left - part
    end
    if sum > 0 then kept[#kept + 1], kept[#kept + 2] = log[i], sum end
  end
  a.past[o] = kept
  v[o + 7] = math.max(v[o + 7] - (reserved - actual - left), 0)
  cut(a, o, 0)
end

-- What lease ends up to now free, by cell: instants and amounts.
local function due_ends(a)
  a.due = call('ZRANGEBYSCORE', a.open, string.format('(%.0f', a.at), now, 'WITHSCORES')
  local v, ends = a.v, {}
  for i = 1, #a.due, 2 do
    local member, time = a.due[i], tonumber(a.due[i + 1])
    for from = 17, #member, 16 do
      local low, high, amount = read('<I4I4d', member, from)
      for o = 0, a.cells * 9 - 9, 9 do
        if v[o + 1] == low and v[o + 2] == high then
          local list = ends[o] or {}
          ends[o] = list
          list[#list + 1], list[#list + 2] = time, amount
        end
      end
    end
  end
  return ends
end

-- Brings the cells of account `index` to now as the charges see them.
local function project(a, index)
  local v, ends = a.v, a.next_end <= now and due_ends(a) or nil
  local known, size, near = a.cells * 9, a.cells * 9, 0
  local charged = {}
  for c = 0, charges * 20 - 20, 20 do
    if C[c + 3] == index then
      local low, high, o = C[c + 1], C[c + 2], near
      if o >= size or v[o + 1] ~= low or v[o + 2] ~= high then
        o = nil
        for p = 0, size - 9, 9 do
          if v[p + 1] == low and v[p + 2] == high then
            o = p
            break
          end
        end
      end
      if o then
        near = o + 9
        if o < known then charged[o] = c end
      elseif C[c + 4] == 1 then
        o = size
        v[o + 1], v[o + 2], v[o + 4], v[o + 5], v[o + 6], v[o + 7], v[o + 8], v[o + 9] = low, high, 0, 0, 0, 0, 0, 0
        local kind = C[c + 8]
        if kind == 1 then
          v[o + 3], v[o + 5], v[o + 6], v[o + 7], v[o + 9] = 0, C[c + 11], C[c + 12], C[c + 11] * UNIT, now
        elseif kind == 3 then
          v[o + 3] = 2
        elseif kind == 4 then
          v[o + 3], v[o + 5], v[o + 6] = 3, C[c + 11], C[c + 14]
        else
          v[o + 3], v[o + 5], v[o + 6] = 1, NEVER, NEVER
        end
        size = size + 9
        near = size
      end
      place_of[c] = o
    end
  end
  for o = 0, known - 9, 9 do
    local c, freed, kind = charged[o], ends and ends[o], v[o + 3]
    if kind == 0 then
      if c then
        if not freed and (C[c + 5] == 0 or (C[c + 11] == v[o + 5] and C[c + 12] == v[o + 6] and C[c + 10] == 0)) then
          refill(v, o, now)
        else
          advance(v, o, c, freed)
        end
      elseif freed then
        for k = 1, #freed, 2 do
          refill(v, o, freed[k])
          v[o + 8] = math.max(v[o + 8] - freed[k + 1], 0)
        end
      end
    elseif kind == 1 then
      if c and C[c + 8] == 2 and (a.past[o] or (now >= v[o + 6] and v[o + 6] ~= NEVER)) then turn(a, o, c) end
    elseif kind == 3 then
      if c then
        if C[c + 8] == 4 then v[o + 6] = C[c + 14] end
        advance_log(a, o)
      end
    elseif freed then
      v[o + 5] = math.max(v[o + 5] - #freed / 2, 0)
    end
  end
  a.cells = size / 9
end

-- What is left in the cell at o by the figures of charge c, and the most there
-- can ever be.
local function stock(a, o, c)
  local v, most, figures = a.v, C[c + 11], C[c + 8]
  local kind = v[o + 3]
  if kind == 0 then
    local level = v[o + 7]
    if figures == 1 then level = level + (most - v[o + 5]) * UNIT end
    return level > 0 and floor(level / UNIT) or 0, most
  elseif kind == 1 and figures == 2 then
    if C[c + 10] > 0 then most = math.min(most + granted(a, c), MAX) end
    local left = most - (v[o + 7] + v[o + 8])
    return left > 0 and left or 0, most
  elseif (kind == 2 and figures == 3) or (kind == 3 and figures == 4) then
    local left = most - v[kind == 2 and o + 5 or o + 7]
    return left > 0 and left or 0, most
  end
  return NONE, most
end

local function add(t, k, amount)
  amount = t[k] + amount
  t[k] = amount < MAX and amount or MAX
end

-- Takes from the running window, which opens if it has not begun.
local function take_window(v, o, amount, held, span, s1, s2, at)
  if v[o + 6] == NEVER then
    if amount > 0 then
      if span == 0 then
        v[o + 5], v[o + 6] = s1, s2
      elseif span == 3 then
        v[o + 5], v[o + 6] = 0, FAR
      else
        v[o + 5], v[o + 6] = at, plus(at, s1)
      end
    end
    add(v, held == 1 and o + 8 or o + 7, amount)
    if v[o + 6] == NEVER then
      if span == 0 then return s1, s2 end
      if span == 3 then return 0, FAR end
      return
    end
  else
    add(v, held == 1 and o + 8 or o + 7, amount)
  end
  return v[o + 5], v[o + 6]
end

-- Where the figures of the window that began at `start` are: used, then held.
local function window_at(a, o, start)
  local v = a.v
  if v[o + 6] ~= NEVER and v[o + 5] == start then
    if now < v[o + 6] then return v, o + 7 end
    keep_past(a, o)
  end
  local past = a.past[o]
  for i = 1, past and #past or 0, 4 do
    if past[i] == start then return past, i + 2 end
  end
end

-- A window nothing was taken from yet begins with a receipt's borders.
local function adopt(v, o, start, finish, amount)
  if amount > 0 and v[o + 6] == NEVER and now < finish then v[o + 5], v[o + 6] = start, finish end
end

-- An admission that took nothing becomes the first take after all.
local function settle_first(a, o, admitted, actual, span, s1, s2, s3, s4)
  local v = a.v
  if actual == 0 then return end
  if span == 0 or span == 3 then return take_window(v, o, actual, 0, span, s1, s2, now) end
  local begun = v[o + 6] ~= NEVER
  local start, finish = admitted, plus(admitted, s1)
  if begun and span == 1 then
    start = v[o + 5] + floor((admitted - v[o + 5]) / s1) * s1
    finish = start + s1
  elseif begun and v[o + 5] < finish then
    start, finish = v[o + 5], v[o + 6]
  end
  if not begun then
    v[o + 5], v[o + 6], v[o + 7], v[o + 8] = start, finish, 0, 0
    roll(a, o, span, s1, s2, s3, s4, now, false)
  end
  local t, k = window_at(a, o, start)
  if t then add(t, k, actual) end
  return start, finish
end

-- What a charge takes for an amount of output: exact in two limbs.
local function amount_for(c, output, least, most)
  if output == most then return C[c + 19] end
  if output == least then return C[c + 18] end
  local d = c / 4
  local fixed, rest, slope, part, unit = demands[d + 1], demands[d + 2], demands[d + 3], demands[d + 4], demands[d + 5]
  local high = floor(output / unit)
  local low = output - high * unit
  local small = rest + part * low
  local amount = fixed + slope * output + part * high + floor((small + unit - 1) / unit)
  return amount < MAX + 1 and amount or MAX + 1
end

-- Reads the charges of an operation: ARGV[from], their demands by output and
-- what few of them have besides.
local function read_charges(from, count, rows)
  C = { read('<' .. rep('I4I4BBBBBBBI2dddddddddd', rows), ARGV[from]) }
  charges = count
  if ARGV[from + 1] ~= '' then demands = { read('<' .. rep('ddddd', rows), ARGV[from + 1]) } end
  if ARGV[from + 2] ~= '' then extras = cmsgpack.unpack(ARGV[from + 2]) end
end

-- The lease ends to come that a wait may depend on.
local function look_ahead(a)
  if a.ahead then return end
  a.ahead = true
  local ends = call('ZRANGEBYSCORE', a.open, string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 512)
  for _, found in ipairs(a.more or {}) do ends[#ends + 1] = found end
  a.more = ends
end

-- What the caller needs to tell what happened: the accounts as they were
-- found, the lease ends that counted, and for tests what they became.
local function answer(code, ...)
  local reply = { code, now, seq, ... }
  for i = 1, #accounts do
    local a, k = accounts[i], #reply
    reply[k + 1], reply[k + 2], reply[k + 3] = a.raw, a.due or {}, a.more or {}
    reply[k + 4] = shows == 1 and a.raw_after or ''
  end
  return reply
end

-- Where a cell is, by its id.
local function cell_at(a, low, high)
  local v = a.v
  for o = 0, a.cells * 9 - 9, 9 do
    if v[o + 1] == low and v[o + 2] == high then return o end
  end
end
