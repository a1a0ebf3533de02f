-- ARGV: state, status, data, executed at, owner, generation.
local g = guard()
if g.owner ~= ARGV[5] or g.generation ~= ARGV[6] then
	return 0
end
if g.state == DONE then -- sent again
	return ARGV[1] == DONE and 1 or 0
end
finish(g, g.generation)
return 1
