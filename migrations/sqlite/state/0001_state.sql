-- What the collector knows besides series. Columns are what is searched and sorted by; the rest is the JSON of the domain
-- types. Times are milliseconds since the epoch.

CREATE TABLE nodes (
    name            TEXT PRIMARY KEY,
    agent_version   TEXT NOT NULL,
    clock_offset_ms INTEGER NOT NULL,
    inventory       TEXT NOT NULL,
    seen_ms         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `machine` is the run's state machine as it stands after transition number `version`.
CREATE TABLE runs (
    id           TEXT PRIMARY KEY,
    submitted_ms INTEGER NOT NULL,
    state        TEXT NOT NULL,
    version      INTEGER NOT NULL,
    spec         TEXT NOT NULL,
    machine      TEXT NOT NULL,
    summary      TEXT NOT NULL
) STRICT;
CREATE INDEX runs_by_time ON runs (submitted_ms);

-- What a transition asked for; written with it, executed after it.
CREATE TABLE run_actions (
    run        TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    attempt    INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    action     TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    done_ms    INTEGER,
    PRIMARY KEY (run, attempt, n)
) STRICT;
CREATE INDEX run_actions_pending ON run_actions (created_ms) WHERE done_ms IS NULL;

-- Events that have already moved a run, so that a repeat does not.
CREATE TABLE run_events (
    run   TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    event TEXT NOT NULL,
    PRIMARY KEY (run, event)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id       INTEGER PRIMARY KEY,
    at_ms    INTEGER NOT NULL,
    severity INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    node     TEXT,
    run      TEXT,
    event    TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_time ON events (at_ms);
CREATE INDEX events_by_run ON events (run, at_ms) WHERE run IS NOT NULL;
CREATE INDEX events_by_node ON events (node, at_ms) WHERE node IS NOT NULL;

-- One row an alert's life; a fingerprint that fires again has another.
CREATE TABLE alerts (
    fingerprint TEXT NOT NULL,
    active_ms   INTEGER NOT NULL,
    state       TEXT NOT NULL,
    updated_ms  INTEGER NOT NULL,
    alert       TEXT NOT NULL,
    PRIMARY KEY (fingerprint, active_ms)
) STRICT;
CREATE INDEX alerts_by_state ON alerts (state, updated_ms);

CREATE TABLE webhooks (
    id           TEXT PRIMARY KEY,
    url          TEXT NOT NULL,
    secret       TEXT NOT NULL,
    created_ms   INTEGER NOT NULL,
    last_error   TEXT,
    delivered_ms INTEGER
) STRICT;

-- Messages to webhooks until they are delivered. `message_id` is the `webhook-id` header: the same in every attempt.
CREATE TABLE outbox (
    id              INTEGER PRIMARY KEY,
    webhook         TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    message_id      TEXT NOT NULL UNIQUE,
    resolved        INTEGER NOT NULL,
    body            TEXT NOT NULL,
    created_ms      INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX outbox_due ON outbox (next_attempt_ms);
CREATE INDEX outbox_by_webhook ON outbox (webhook);

-- Only the hash of a token is kept.
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    role       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE,
    note       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    used_ms    INTEGER
) STRICT;

-- Browsers that logged in with a token; revoking the token ends them.
CREATE TABLE browser_sessions (
    hash       BLOB PRIMARY KEY,
    token      TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    csrf       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX browser_sessions_by_token ON browser_sessions (token);

CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,
    at_ms  INTEGER NOT NULL,
    who    TEXT NOT NULL,
    what   TEXT NOT NULL,
    target TEXT NOT NULL
) STRICT;
CREATE INDEX audit_by_time ON audit (at_ms);
