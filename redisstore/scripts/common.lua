-- What every script begins with. A record is the hash KEYS[1]. All times are
-- microseconds since 1970 by this server's clock, which is read once a script;
-- a double holds them exactly until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- after is the time so many microseconds from now, as it is stored.
local function after(micros)
	return string.format('%.0f', now + micros)
end

-- row is the record and the clock that judges it; nil if there is none.
local function row()
	local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'origin', 'generation', 'attempt', 'fingerprint',
		'status', 'data', 'created_at', 'executed_at', 'expires_at', 'lease_until')
	if not f[1] then
		return nil
	end
	f[13] = string.format('%.0f', now)
	return f
end

-- guard is what decides about a change. Its state is false if there is no record.
local function guard()
	local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'generation', 'lease_until', 'purge_at', 'attempt')
	local lease = tonumber(f[4] or 0)
	return {
		state = f[1], owner = f[2], generation = f[3], purge_at = tonumber(f[5] or 0), attempt = f[6],
		live = lease > now, -- the lease has not ended
		given = lease > 0, -- nobody has given it back, though it may have ended
	}
end

-- finish gives the record the result in ARGV[1] to ARGV[4], and its lease back.
-- Only what is done ever ends by itself. The write that needs memory comes
-- first: a server that has none refuses it, and nothing is changed.
local function finish(g, generation)
	redis.call('HSET', KEYS[1], 'state', ARGV[1], 'status', ARGV[2], 'data', ARGV[3], 'executed_at', ARGV[4],
		'lease_until', '0', 'generation', generation)
	if ARGV[1] == DONE then
		redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(g.purge_at / 1000)))
	else
		redis.call('PERSIST', KEYS[1])
	end
end
