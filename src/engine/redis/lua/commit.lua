-- Putting a step in place: all that is written, in one go at the end.

local DAY, HOUR = 86400000, 3600000
-- How long what nobody uses stays: longer than anything counts by itself.
local IDLE = 26 * HOUR

-- Notes that a hold occupies what `member` says until `time`.
local function open_hold(a, member, time)
  call('ZADD', a.open, time, member)
  if call('ZCARD', a.open) == 1 then call('PEXPIRE', a.open, 2 * IDLE) end
  if time < a.next_end then a.next_end = time end
  if time > a.last_end then a.last_end = time end
end

-- A hold occupies nothing any more. Where its parts were written in another
-- way, it is found by its id.
local function close_hold(a, member, time)
  if call('ZREM', a.open, member) == 1 then return true end
  local id = member:sub(1, 16)
  for _, other in ipairs(call('ZRANGEBYSCORE', a.open, time, time)) do
    if other:sub(1, 16) == id then
      call('ZREM', a.open, other)
      return true
    end
  end
  return false
end

-- Packs an account and puts it in place. The time that it stays begins anew
-- with the first write of an hour.
local function write(a, is_users)
  local stays = floor(a.at / HOUR) == floor(now / HOUR)
  if a.next_end <= now then
    if not is_users then call('ZREMRANGEBYSCORE', a.open, '-inf', now) end
    local next_one = call('ZRANGEBYSCORE', a.open, string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    a.next_end = tonumber(next_one[2]) or NONE
  end
  if now > a.at then a.at = now end
  local v, cells, spent, tail = a.v, a.cells, a.spent, ''
  if next(a.past) then
    for o = 0, cells * 9 - 9, 9 do
      local past, kind = a.past[o], v[o + 3]
      if past then tail = tail .. pack('<' .. rep('d', #past), unpack(past)) end
      if kind == 1 or kind == 3 then v[o + 9] = past and #past / (kind == 1 and 4 or 2) or 0 end
    end
  end
  if #spent > 0 then tail = tail .. pack('<' .. rep('I4d', #spent / 2), unpack(spent)) end
  local head = pack('<BI4ddddI2I2', 1, (a.rev + 1) % 4294967296, a.at, a.next_end, a.last_end, a.kept, cells, #spent / 2)
  if cells <= 100 then
    head = head .. pack('<' .. rep('I4I4BI4ddddd', cells), unpack(v, 1, cells * 9)) .. tail
  else
    local parts = { head }
    for o = 0, cells * 9 - 9, 9 do
      parts[#parts + 1] = pack('<I4I4BI4ddddd', unpack(v, o + 1, o + 9))
    end
    parts[#parts + 1] = tail
    head = table.concat(parts)
  end
  a.raw_after = head
  if stays then
    call('SET', a.key, head, 'KEEPTTL')
  else
    call('SET', a.key, head, 'PX', IDLE)
    -- Longer than the account: it must never be without them.
    call('PEXPIRE', a.open, 2 * IDLE)
  end
end

-- Remembers a request id until a day after its hold finished. Like a hash map
-- that grows, the list is tidied whenever it is twice as long.
local function remember(digest, hold, finished)
  call('HSET', requests, digest, pack('<c16d', hold, finished))
  if seq % 64 == 0 then
    local length = call('HLEN', requests)
    if length > (tonumber(call('HGET', requests, '')) or 256) then
      local all, left = call('HGETALL', requests), length
      for i = 1, #all, 2 do
        if #all[i] == 8 then
          local _, over = read('<c16d', all[i + 1])
          if over ~= FAR and plus(over, DAY) <= now then
            call('HDEL', requests, all[i])
            left = left - 1
          end
        end
      end
      call('HSET', requests, '', math.max(256, left * 2))
    end
  end
  local a = accounts[1]
  if now - a.kept > HOUR or now < a.kept then
    a.kept = now
    call('PEXPIRE', requests, 2 * IDLE)
  end
end

-- Leaves the step's event in the stream and moves the slot on.
local function leave(kind, ...)
  seq = seq + 1
  local event = { 'XADD', stream, string.format('%.0f-0', seq), 'k', kind, ... }
  for i = 1, #accounts do
    local k, a = #event, accounts[i]
    event[k + 1], event[k + 2] = a.key, a.raw_after
  end
  call(unpack(event))
  call('SET', KEYS[1], pack('<ddddB', epoch, seq, drained, clock, 0))
end

