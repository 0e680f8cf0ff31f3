-- Steps of a pool's line. KEYS: the line. ARGV: what to do, the node, and for
-- `enter` how many may stand there and the waiter, for `leave` the turn.
-- Answers whether it went, and how many of the node wait.

local what, node = ARGV[1], struct.unpack('<d', ARGV[2])
local line = redis.call('GET', KEYS[1]) or struct.pack('<ddddddI2', 0, 0, 0, 0, 0, 0, 0)
local real = real_time()
local first, there = nodes_of(line)

local function with_nodes(body)
  local nodes, count = {}, 0
  for known, till in pairs(there) do
    count = count + 1
    nodes[count] = struct.pack('<dd', known, till)
  end
  return line:sub(1, 48) .. struct.pack('<I2', count) .. table.concat(nodes) .. body
end

if what == 'leave' then
  local rank, ticket = struct.unpack('<dd', ARGV[3])
  put_line(KEYS[1], without(line, rank, ticket, node))
  return { 1, 0 }
elseif what == 'enter' then
  local waiter = ARGV[4]
  local rank, ticket = struct.unpack('<dd', waiter)
  local at = #line + 1
  while at > first do
    local r, t, d = struct.unpack('<ddd', line, at - WAITER)
    if r < rank or (r == rank and (t < ticket or (t == ticket and d <= node))) then
      if r == rank and t == ticket and d == node then return { 1, 0 } end
      break
    end
    at = at - WAITER
  end
  if (#line + 1 - first) / WAITER >= tonumber(ARGV[3]) then return { 0, 0 } end
  if not there[node] then there[node] = real + ALIVE end
  local _, bulk, input, output = struct.unpack('<BBdd', waiter, 33)
  line = tally(with_nodes(line:sub(first, at - 1) .. waiter .. line:sub(at)), bulk, 1, input, output)
  put_line(KEYS[1], line)
  return { 1, 0 }
end

-- A sign of life: who waits at nodes that give none is forgotten.
for known, till in pairs(there) do
  if till <= real then there[known] = nil end
end
there[node] = real + ALIVE
local kept, mine, gone = {}, 0, {}
for at = first, #line, WAITER do
  local _, _, whose, _, _, bulk, input, output = struct.unpack('<ddddBBdd', line, at)
  if there[whose] then kept[#kept + 1] = line:sub(at, at + WAITER - 1) else gone[#gone + 1] = { bulk, input, output } end
  if whose == node then mine = mine + 1 end
end
line = with_nodes(table.concat(kept))
for _, lost in ipairs(gone) do line = tally(line, lost[1], -1, -lost[2], -lost[3]) end
put_line(KEYS[1], line)
return { 1, mine }
