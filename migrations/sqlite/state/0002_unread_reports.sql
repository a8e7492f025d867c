-- Reports of nodes that the collector could not read when they came: of a newer agent, or too large. They lie here as they came, within
-- the bounds of store::state::unread, and each later collector reads them again when it starts. The row with the event 'more' counts
-- those of its run that came beyond the bounds.
CREATE TABLE unread_reports (
    id          INTEGER PRIMARY KEY,
    run         TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- As in run_events: attempt, node and the agent's id of the report.
    event       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    node        TEXT NOT NULL,
    kind        TEXT NOT NULL,
    reason      TEXT NOT NULL,
    received_ms INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    -- NULL when only the arrival is kept.
    report      TEXT,
    UNIQUE (run, event)
) STRICT;
