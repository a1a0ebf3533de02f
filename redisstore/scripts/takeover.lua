-- ARGV: owner, generation that was read, the next one, lease, ask, owner that was read.
local g = guard()
if not g.state or g.state == DONE then
	return 0
end
if g.owner == ARGV[1] and g.generation == ARGV[3] then -- sent again
	return (ARGV[5] == '1' or g.state == RUNNING) and 1 or 0
end
if g.generation ~= ARGV[2] or g.owner ~= ARGV[6] then
	return 0
end
if g.owner ~= ARGV[1] and (g.live or (ARGV[5] ~= '1' and g.state ~= RUNNING)) then
	return 0
end
if ARGV[5] == '1' then
	redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'generation', ARGV[3], 'lease_until', after(ARGV[4]))
else
	redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'generation', ARGV[3], 'lease_until', after(ARGV[4]),
		'state', RUNNING, 'status', '0', 'attempt', string.format('%.0f', g.attempt + 1))
end
return 1
