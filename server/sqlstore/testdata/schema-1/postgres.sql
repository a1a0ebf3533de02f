CREATE TABLE IF NOT EXISTS oncemore_keys (
    id          bytea       PRIMARY KEY, -- SHA-256 of scope and key; the key itself is nowhere
    fingerprint bytea       NOT NULL,    -- SHA-256 of the request
    owner       bytea       NOT NULL,    -- token of the arrival that holds the row, or held it last
    origin      bytea       NOT NULL,    -- token of the arrival that created it
    generation  bigint      NOT NULL,    -- one more at every takeover: the fence
    attempt     integer     NOT NULL,    -- one more at every takeover that runs
    state       smallint    NOT NULL,    -- 1 running, 2 done, 3 unknown
    status      integer     NOT NULL,    -- HTTP status of the result, 0 if there is none
    lease_until timestamptz NOT NULL,    -- 1970-01-01: nobody holds the row
    created_at  timestamptz NOT NULL,
    executed_at timestamptz,
    expires_at  timestamptz NOT NULL,    -- past it the key is refused
    purge_at    timestamptz NOT NULL,    -- past it the row may be purged
    scope       text        NOT NULL,    -- for support and for erasing a tenant; nothing is decided by it
    method      text        NOT NULL,
    route       text        NOT NULL,
    data        bytea                    -- the stored response
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS oncemore_keys_purge_at ON oncemore_keys (purge_at);
COMMENT ON TABLE oncemore_keys IS 'oncemore schema 1';
