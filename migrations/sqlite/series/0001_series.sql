-- The series' own database, lockstep.db: what names them, and their sealed chunks. Samples that are not sealed yet are in
-- the write-ahead files beside it (wal-NNNNNN.db).

-- A group is what one node says of one metric, at most 64 series. Its head is sealed as a whole, so that one number says
-- up to which write-ahead batch its samples are in chunks; a replay skips those.
CREATE TABLE groups (
    id             INTEGER PRIMARY KEY,
    node           TEXT NOT NULL,
    metric         TEXT NOT NULL,
    sealed_batch   INTEGER NOT NULL DEFAULT 0,
    sealed_max_ms  INTEGER
) STRICT;

CREATE TABLE series (
    id       INTEGER PRIMARY KEY,
    group_id INTEGER NOT NULL REFERENCES groups (id),
    labels   TEXT NOT NULL
) STRICT;

-- A chunk's blob is drawn in crates/store/src/series/chunk.rs.
CREATE TABLE chunks (
    id       INTEGER PRIMARY KEY,
    group_id INTEGER NOT NULL REFERENCES groups (id),
    min_ms   INTEGER NOT NULL,
    max_ms   INTEGER NOT NULL,
    series   INTEGER NOT NULL,
    samples  INTEGER NOT NULL,
    data     BLOB NOT NULL
) STRICT;
CREATE INDEX chunks_by_group ON chunks (group_id, max_ms);

-- The last sequence number seen of each sending session, as of the oldest write-ahead file still there.
CREATE TABLE sessions (
    session TEXT PRIMARY KEY,
    seq     INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- TYPE and HELP by metric name.
CREATE TABLE metadata (
    name TEXT PRIMARY KEY,
    type TEXT NOT NULL,
    help TEXT NOT NULL
) STRICT, WITHOUT ROWID;
