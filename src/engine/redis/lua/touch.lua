-- Brings an account to now by the figures of charges. ARGV from 2: how many
-- charges, charges (3).

if accounts[1].cells == 0 then return { DONE, now, seq } end
local m = read('<I2', ARGV[2])
read_charges(3, m, m)
project(accounts[1], 1)
write(accounts[1], ARGV[6] == '1')
leave('c')
return answer(DONE, '')
