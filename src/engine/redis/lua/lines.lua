-- A pool's line: the twin of domain/line.rs. What both lanes ask for (calls,
-- input and output, interactive then bulk), how many nodes there are, each with
-- until when it is believed to be there, then the waiters in the order of their
-- turns: rank, ticket, node, deadline, class, bulk, input, output.

local HEAD, NODE, WAITER, PATIENCE, ALIVE, NO_TICKET = 50, 16, 50, 5000, 5000, 9007199254740991

local function real_time()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Where the waiters begin, and who is there.
local function nodes_of(line)
  local count = struct.unpack('<I2', line, 49)
  local there = {}
  for at = HEAD + 1, HEAD + count * NODE, NODE do
    local node, till = struct.unpack('<dd', line, at)
    there[node] = till
  end
  return HEAD + count * NODE + 1, there
end

local function put_line(key, line)
  local first = nodes_of(line)
  if first > #line then
    redis.call('UNLINK', key)
  else
    redis.call('SET', key, line, 'PX', ALIVE)
  end
end

-- Changes what a lane asks for.
local function tally(line, bulk, calls, input, output)
  local at = bulk == 1 and 25 or 1
  local c, i, o = struct.unpack('<ddd', line, at)
  local function sum(a, b) return math.max(math.min(a + b, 9007199254740991), 0) end
  return line:sub(1, at - 1) .. struct.pack('<ddd', sum(c, calls), sum(i, input), sum(o, output)) .. line:sub(at + 24)
end

-- The line without one waiter, found by its turn.
local function without(line, rank, ticket, node)
  local first = nodes_of(line)
  local turn, from = struct.pack('<ddd', rank, ticket, node), first
  while true do
    local at = line:find(turn, from, true)
    if not at then return line end
    if (at - first) % WAITER == 0 then
      local _, bulk, input, output = struct.unpack('<BBdd', line, at + 32)
      return tally(line:sub(1, at - 1) .. line:sub(at + WAITER), bulk, -1, -input, -output)
    end
    from = at + 1
  end
end

