-- Brings an account to now by the figures of charges; of a bucket or a rolling
-- limit whose charge asks for something, what there is beyond what is left behind
-- is gone. ARGV from 2: how many charges, charges (3).

local m, drains = read('<I2', ARGV[2]), false
read_charges(3, m, m)
for c = 0, m * 20 - 20, 20 do drains = drains or C[c + 4] == 1 and C[c + 18] > 0 end
if accounts[1].cells == 0 and not drains then return { DONE, now, seq } end
project(accounts[1], 1)
for c = 0, m * 20 - 20, 20 do
  local o, v = place_of[c], accounts[1].v
  if o and C[c + 4] == 1 and C[c + 18] > 0 then
    local gone = math.max(stock(accounts[1], o, c) - C[c + 20], 0)
    if v[o + 3] == 0 then
      change_level(v, o, -gone)
    elseif v[o + 3] == 3 and C[c + 8] == 4 then
      take_log(accounts[1], o, gone, C[c + 11])
    end
  end
end
write(accounts[1], ARGV[6] == '1')
leave('c')
return answer(DONE, '')
