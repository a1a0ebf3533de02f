-- ARGV: owner, generation, lease.
local g = guard()
if g.owner ~= ARGV[1] or g.generation ~= ARGV[2] or not g.given then
	return 0
end
redis.call('HSET', KEYS[1], 'lease_until', after(ARGV[3]))
return 1
