-- No ARGV. Somebody's run, or question, is left alone.
local g = guard()
if g.state and g.state ~= DONE and g.live then
	return 0
end
redis.call('DEL', KEYS[1])
return 1
