-- Webhooks get the newest state of each group of alerts, not a log of messages; and what nodes hold that this state does not know.

-- One row per webhook and group of alerts (a group is a rule, by its name). `next_attempt_ms` is NULL while the receiver knows the
-- newest state. Nothing is ever dropped here: changes that are not delivered yet replace each other.
CREATE TABLE webhook_groups (
    webhook         TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    rule            TEXT NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_ms INTEGER,
    PRIMARY KEY (webhook, rule)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_groups_due ON webhook_groups (next_attempt_ms) WHERE next_attempt_ms IS NOT NULL;

-- The alerts of a group: the newest state of each, as the row of `alerts` that it names, beside what the receiver knows.
--   pending  the receiver has not confirmed the newest state
--   heard    the receiver may know the alert as firing: such an alert is never dropped before its end is delivered
--   version  grows with each change, so that a delivery confirms only what it carried
CREATE TABLE webhook_alerts (
    webhook     TEXT NOT NULL,
    rule        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    active_ms   INTEGER NOT NULL,
    firing      INTEGER NOT NULL,
    pending     INTEGER NOT NULL,
    heard       INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    PRIMARY KEY (webhook, rule, fingerprint),
    FOREIGN KEY (webhook, rule) REFERENCES webhook_groups (webhook, rule) ON DELETE CASCADE,
    FOREIGN KEY (fingerprint, active_ms) REFERENCES alerts (fingerprint, active_ms)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_alerts_by_alert ON webhook_alerts (fingerprint, active_ms);

-- Alerts that fire now. The messages of earlier versions about them were delivered, or wait in `outbox`, which goes out first.
INSERT INTO webhook_groups (webhook, rule)
    SELECT DISTINCT webhooks.id, alert ->> 'rule' FROM alerts, webhooks
    WHERE state = 'firing' AND coalesce(alert ->> 'fired_ms', active_ms) >= webhooks.created_ms;
INSERT INTO webhook_alerts (webhook, rule, fingerprint, active_ms, firing, pending, heard, version)
    SELECT webhooks.id, alert ->> 'rule', fingerprint, max(active_ms), 1, 0, 1, 0 FROM alerts, webhooks
    WHERE state = 'firing' AND coalesce(alert ->> 'fired_ms', active_ms) >= webhooks.created_ms
    GROUP BY webhooks.id, fingerprint;

-- Each time a backup was put into this data folder. `settled_ms` is when the nodes had said what they hold since.
CREATE TABLE restores (
    id          INTEGER PRIMARY KEY,
    restored_ms INTEGER NOT NULL,
    backup_ms   INTEGER NOT NULL,
    settled_ms  INTEGER
) STRICT;

-- Attempts that a node holds and that this state does not know. They are left alone until a person decides.
CREATE TABLE unknown_attempts (
    node         TEXT NOT NULL,
    run          TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    since_ms     INTEGER NOT NULL,
    stop_told_ms INTEGER,
    PRIMARY KEY (node, run, attempt)
) STRICT, WITHOUT ROWID;
