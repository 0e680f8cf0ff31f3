-- Nobody's account has moved away from this name any more. KEYS: the account.

if redis.call('GET', KEYS[1]) == 'M' then redis.call('UNLINK', KEYS[1]) end
return 0
