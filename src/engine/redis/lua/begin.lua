-- An account: the packed state as found, its cells as nine numbers each (see
-- cells.lua), ended windows and logs by cell, what is gone of grants.
local accounts, absent = {}, nil
for i = 1, n do
  local raw = found[i + 2]
  if not raw then
    absent = absent or { MISSING, seq }
    absent[#absent + 1] = i - 1
  elseif #raw == 1 then
    return { MOVED }
  else
    local _, rev, at, next_end, last_end, kept, cells, spent, from = read('<BI4ddddI2I2', raw)
    local v
    if cells <= 100 then
      v = { read('<' .. rep('I4I4BI4ddddd', cells), raw, from) }
      from = v[cells * 9 + 1]
    else
      v = {}
      for place = 0, cells - 1 do
        local o, c = place * 9, { read('<I4I4BI4ddddd', raw, from) }
        for k = 1, 9 do v[o + k] = c[k] end
        from = c[10]
      end
    end
    local a = {
      v = v, cells = cells, known = cells, rev = rev, at = at, next_end = next_end, last_end = last_end, kept = kept,
      raw = raw, key = KEYS[i + 2], open = KEYS[n + i + 2], past = {}, spent = {},
    }
    if from <= #raw then
      for o = 0, cells * 9 - 9, 9 do
        local kind = v[o + 3]
        if (kind == 1 or kind == 3) and v[o + 9] > 0 then
          local past = { read('<' .. rep(kind == 1 and 'dddd' or 'dd', v[o + 9]), raw, from) }
          from = table.remove(past)
          a.past[o] = past
        end
      end
      if spent > 0 then
        a.spent = { read('<' .. rep('I4d', spent), raw, from) }
        table.remove(a.spent)
      end
    end
    if at > now then now = at end
    accounts[i] = a
  end
end
if absent then return absent end
