CREATE TABLE IF NOT EXISTS oncemore_keys ( -- oncemore schema 1; times are microseconds since 1970 UTC
    id          BLOB    NOT NULL PRIMARY KEY, -- SHA-256 of scope and key; the key itself is nowhere
    fingerprint BLOB    NOT NULL, -- SHA-256 of the request
    owner       BLOB    NOT NULL, -- token of the arrival that holds the row, or held it last
    origin      BLOB    NOT NULL, -- token of the arrival that created it
    generation  INTEGER NOT NULL, -- one more at every takeover: the fence
    attempt     INTEGER NOT NULL, -- one more at every takeover that runs
    state       INTEGER NOT NULL, -- 1 running, 2 done, 3 unknown
    status      INTEGER NOT NULL, -- HTTP status of the result, 0 if there is none
    lease_until INTEGER NOT NULL, -- 0: nobody holds the row
    created_at  INTEGER NOT NULL,
    executed_at INTEGER,
    expires_at  INTEGER NOT NULL, -- past it the key is refused
    purge_at    INTEGER NOT NULL, -- past it the row may be purged
    scope       TEXT    NOT NULL, -- for support and for erasing a tenant; nothing is decided by it
    method      TEXT    NOT NULL,
    route       TEXT    NOT NULL,
    data        BLOB -- the stored response
);
CREATE INDEX IF NOT EXISTS oncemore_keys_purge_at ON oncemore_keys (purge_at);
