-- ARGV: state, status, data, executed at, generation that was read, the next one.
local g = guard()
if g.generation == ARGV[6] and g.state == ARGV[1] then -- sent again
	local f = redis.call('HMGET', KEYS[1], 'status', 'data')
	if f[1] == ARGV[2] and f[2] == ARGV[3] then
		return 1
	end
end
if g.generation ~= ARGV[5] or (g.state == RUNNING and g.live) then
	return 0
end
finish(g, ARGV[6])
return 1
