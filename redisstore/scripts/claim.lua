-- ARGV: owner, fingerprint, lease, ttl, keep, scope, method, route, must exist, lapses.
-- The record that is there; 1 if it was created; 0 if there is none.
local f = row()
if f then
	local lapsed = tonumber(f[11]) <= now and (f[1] ~= RUNNING or tonumber(f[12]) <= now)
	if ARGV[10] == '0' or not lapsed then
		return f
	end
end
if ARGV[9] == '1' then
	return 0
end
if f then
	redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'state', RUNNING, 'owner', ARGV[1], 'origin', ARGV[1], 'generation', '1', 'attempt', '1',
	'fingerprint', ARGV[2], 'status', '0', 'data', '', 'executed_at', '', 'created_at', after(0),
	'lease_until', after(ARGV[3]), 'expires_at', after(ARGV[4]), 'purge_at', after(ARGV[5]),
	'scope', ARGV[6], 'method', ARGV[7], 'route', ARGV[8])
return 1
