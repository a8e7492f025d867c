-- Diagnoses: what was known around an alert that has fired, what people did about it, and silences. The id of a diagnosis is the key of its
-- row in `alerts`; what hangs on the row goes with it.

CREATE INDEX alerts_by_rule ON alerts (alert ->> '$.rule', active_ms);
CREATE INDEX alerts_by_run ON alerts (alert ->> '$.labels.run', updated_ms) WHERE alert ->> '$.labels.run' IS NOT NULL;

-- The JSON of domain::incident::Context, written when the alert fires and when it ends.
CREATE TABLE alert_contexts (
    fingerprint TEXT NOT NULL,
    active_ms   INTEGER NOT NULL,
    context     TEXT NOT NULL,
    PRIMARY KEY (fingerprint, active_ms),
    FOREIGN KEY (fingerprint, active_ms) REFERENCES alerts (fingerprint, active_ms) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Only ever appended to. `entry` is the JSON of domain::incident::EntryKind.
CREATE TABLE alert_entries (
    id          INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    active_ms   INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    who         TEXT NOT NULL,
    entry       TEXT NOT NULL,
    FOREIGN KEY (fingerprint, active_ms) REFERENCES alerts (fingerprint, active_ms) ON DELETE CASCADE
) STRICT;
CREATE INDEX alert_entries_by_alert ON alert_entries (fingerprint, active_ms);

-- Alerts that match are not sent to webhooks between the two times. `silence` is the JSON of domain::incident::Silence.
CREATE TABLE silences (
    id      TEXT PRIMARY KEY,
    ends_ms INTEGER NOT NULL,
    silence TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX silences_by_end ON silences (ends_ms);
