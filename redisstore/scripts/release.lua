-- ARGV: owner, generation.
local g = guard()
if not g.state then
	return 1
end
if g.owner ~= ARGV[1] or g.generation ~= ARGV[2] or not g.given then
	return 0
end
redis.call('DEL', KEYS[1])
return 1
