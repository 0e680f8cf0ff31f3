-- What receipts need besides.

-- The first charge on the cell at o of account `index`.
local function charge_on(index, o)
  for c = 0, charges * 20 - 20, 20 do
    if C[c + 3] == index and place_of[c] == o then return c end
  end
end

-- What is gone of the window that began at `start`.
local function taken_of(a, o, start)
  local v, past = a.v, a.past[o]
  for i = 1, past and #past or 0, 4 do
    if past[i] == start then return math.min(past[i + 2] + past[i + 3], MAX) end
  end
  if v[o + 6] ~= NEVER and v[o + 5] == start then return math.min(v[o + 7] + v[o + 8], MAX) end
  return 0
end
