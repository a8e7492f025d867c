-- `state.db` of revision b49bf1d, as `sqlite3 .dump` writes it; tokens and audit removed. Its two webhooks could not be reached.
BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO "_sqlx_migrations" VALUES(1,'state','2026-11-23 15:14:49',1,X'31718C5F1449C103CF3342181F03FB51E0C273102D668A99DCAAC556230791CF4AB916CB3F988FCDEA9965A8EAD0A44C',3513205);
CREATE TABLE alerts (
    fingerprint TEXT NOT NULL,
    active_ms   INTEGER NOT NULL,
    state       TEXT NOT NULL,
    updated_ms  INTEGER NOT NULL,
    alert       TEXT NOT NULL,
    PRIMARY KEY (fingerprint, active_ms)
) STRICT;
INSERT INTO "alerts" VALUES('1c7f4caee61a2943',1795446889853,'firing',1795446889853,'{"fingerprint":"1c7f4caee61a2943","rule":"Hot","state":"firing","severity":"warning","labels":{"alertname":"Hot","node":"n1","severity":"warning"},"annotations":{"summary":"n1 is hot"},"value":"91","active_ms":1795446889853,"fired_ms":1795446889853}');
INSERT INTO "alerts" VALUES('fcb5b09efeb4f976',1795446889853,'firing',1795446889853,'{"fingerprint":"fcb5b09efeb4f976","rule":"Hot","state":"firing","severity":"warning","labels":{"alertname":"Hot","node":"n2","severity":"warning"},"annotations":{"summary":"n2 is hot"},"value":"92","active_ms":1795446889853,"fired_ms":1795446889853}');
INSERT INTO "alerts" VALUES('95539d7399f43856',1795446889853,'resolved',1795446890853,'{"fingerprint":"95539d7399f43856","rule":"Blink","state":"resolved","severity":"critical","labels":{"alertname":"Blink","severity":"critical"},"annotations":{},"value":"1.8529999256134033","active_ms":1795446889853,"fired_ms":1795446889853,"resolved_ms":1795446890853}');
INSERT INTO "alerts" VALUES('95539d7399f43856',1795446892853,'resolved',1795446894853,'{"fingerprint":"95539d7399f43856","rule":"Blink","state":"resolved","severity":"critical","labels":{"alertname":"Blink","severity":"critical"},"annotations":{},"value":"1.8529999256134033","active_ms":1795446892853,"fired_ms":1795446892853,"resolved_ms":1795446894853}');
INSERT INTO "alerts" VALUES('95539d7399f43856',1795446896853,'firing',1795446896853,'{"fingerprint":"95539d7399f43856","rule":"Blink","state":"firing","severity":"critical","labels":{"alertname":"Blink","severity":"critical"},"annotations":{},"value":"0.8529999256134033","active_ms":1795446896853,"fired_ms":1795446896853}');
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,
    at_ms  INTEGER NOT NULL,
    who    TEXT NOT NULL,
    what   TEXT NOT NULL,
    target TEXT NOT NULL
) STRICT;
CREATE TABLE browser_sessions (
    hash       BLOB PRIMARY KEY,
    token      TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    csrf       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
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
CREATE TABLE nodes (
    name            TEXT PRIMARY KEY,
    agent_version   TEXT NOT NULL,
    clock_offset_ms INTEGER NOT NULL,
    inventory       TEXT NOT NULL,
    seen_ms         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
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
INSERT INTO "outbox" VALUES(1,'wh-62484231625d','msg_86b861978dbb1c521b372dcb815d5579',0,'{"alerts":[{"annotations":{"summary":"n1 is hot"},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"1c7f4caee61a2943","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Hot","node":"n1","severity":"warning"},"startsAt":"2026-11-23T15:14:49.853Z","status":"firing","value":"91"},{"annotations":{"summary":"n2 is hot"},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"fcb5b09efeb4f976","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Hot","node":"n2","severity":"warning"},"startsAt":"2026-11-23T15:14:49.853Z","status":"firing","value":"92"}],"commonAnnotations":{},"commonLabels":{"alertname":"Hot","severity":"warning"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Hot\"}","groupLabels":{"alertname":"Hot"},"receiver":"wh-62484231625d","status":"firing","truncatedAlerts":0,"version":"4"}',1795446889853,4,1795446904915);
INSERT INTO "outbox" VALUES(2,'wh-42cd139a77a9','msg_ae58857437729ed194aabab27d3ebbf3',0,'{"alerts":[{"annotations":{"summary":"n1 is hot"},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"1c7f4caee61a2943","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Hot","node":"n1","severity":"warning"},"startsAt":"2026-11-23T15:14:49.853Z","status":"firing","value":"91"},{"annotations":{"summary":"n2 is hot"},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"fcb5b09efeb4f976","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Hot","node":"n2","severity":"warning"},"startsAt":"2026-11-23T15:14:49.853Z","status":"firing","value":"92"}],"commonAnnotations":{},"commonLabels":{"alertname":"Hot","severity":"warning"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Hot\"}","groupLabels":{"alertname":"Hot"},"receiver":"wh-42cd139a77a9","status":"firing","truncatedAlerts":0,"version":"4"}',1795446889853,4,1795446904915);
INSERT INTO "outbox" VALUES(3,'wh-62484231625d','msg_d42cd2b223aad8640ee3749e642f2f60',0,'{"alerts":[{"annotations":{},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"95539d7399f43856","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Blink","severity":"critical"},"startsAt":"2026-11-23T15:14:49.853Z","status":"firing","value":"1.8529999256134033"}],"commonAnnotations":{},"commonLabels":{"alertname":"Blink","severity":"critical"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Blink\"}","groupLabels":{"alertname":"Blink"},"receiver":"wh-62484231625d","status":"firing","truncatedAlerts":0,"version":"4"}',1795446889853,4,1795446904949);
INSERT INTO "outbox" VALUES(4,'wh-42cd139a77a9','msg_b320eb5d276342d582d060be5c4a66ed',0,'{"alerts":[{"annotations":{},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"95539d7399f43856","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Blink","severity":"critical"},"startsAt":"2026-11-23T15:14:49.853Z","status":"firing","value":"1.8529999256134033"}],"commonAnnotations":{},"commonLabels":{"alertname":"Blink","severity":"critical"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Blink\"}","groupLabels":{"alertname":"Blink"},"receiver":"wh-42cd139a77a9","status":"firing","truncatedAlerts":0,"version":"4"}',1795446889853,4,1795446904945);
INSERT INTO "outbox" VALUES(5,'wh-62484231625d','msg_7fc3c7cc05facc478e3b4539d701e000',1,'{"alerts":[{"annotations":{},"endsAt":"2026-11-23T15:14:50.853Z","evidence":[],"fingerprint":"95539d7399f43856","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Blink","severity":"critical"},"startsAt":"2026-11-23T15:14:49.853Z","status":"resolved","value":"1.8529999256134033"}],"commonAnnotations":{},"commonLabels":{"alertname":"Blink","severity":"critical"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Blink\"}","groupLabels":{"alertname":"Blink"},"receiver":"wh-62484231625d","status":"resolved","truncatedAlerts":0,"version":"4"}',1795446890853,4,1795446905885);
INSERT INTO "outbox" VALUES(6,'wh-42cd139a77a9','msg_b3bbdbda16531aede217514edbad6c4e',1,'{"alerts":[{"annotations":{},"endsAt":"2026-11-23T15:14:50.853Z","evidence":[],"fingerprint":"95539d7399f43856","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Blink","severity":"critical"},"startsAt":"2026-11-23T15:14:49.853Z","status":"resolved","value":"1.8529999256134033"}],"commonAnnotations":{},"commonLabels":{"alertname":"Blink","severity":"critical"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Blink\"}","groupLabels":{"alertname":"Blink"},"receiver":"wh-42cd139a77a9","status":"resolved","truncatedAlerts":0,"version":"4"}',1795446890853,4,1795446905873);
INSERT INTO "outbox" VALUES(7,'wh-62484231625d','msg_f485472b8b028962ada38281608aca6a',0,'{"alerts":[{"annotations":{},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"95539d7399f43856","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Blink","severity":"critical"},"startsAt":"2026-11-23T15:14:52.853Z","status":"firing","value":"0.8529999256134033"}],"commonAnnotations":{},"commonLabels":{"alertname":"Blink","severity":"critical"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Blink\"}","groupLabels":{"alertname":"Blink"},"receiver":"wh-62484231625d","status":"firing","truncatedAlerts":0,"version":"4"}',1795446892853,3,1795446899874);
INSERT INTO "outbox" VALUES(8,'wh-42cd139a77a9','msg_5795dd543109c9e41a1d86b6f11b78fa',0,'{"alerts":[{"annotations":{},"endsAt":"0001-01-01T00:00:00Z","evidence":[],"fingerprint":"95539d7399f43856","generatorURL":"http://127.0.0.1:18470/rules","labels":{"alertname":"Blink","severity":"critical"},"startsAt":"2026-11-23T15:14:52.853Z","status":"firing","value":"0.8529999256134033"}],"commonAnnotations":{},"commonLabels":{"alertname":"Blink","severity":"critical"},"externalURL":"http://127.0.0.1:18470","groupKey":"{}:{alertname=\"Blink\"}","groupLabels":{"alertname":"Blink"},"receiver":"wh-42cd139a77a9","status":"firing","truncatedAlerts":0,"version":"4"}',1795446892853,3,1795446899893);
CREATE TABLE run_actions (
    run        TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    attempt    INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    action     TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    done_ms    INTEGER,
    PRIMARY KEY (run, attempt, n)
) STRICT;
CREATE TABLE run_events (
    run   TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    event TEXT NOT NULL,
    PRIMARY KEY (run, event)
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
    id           TEXT PRIMARY KEY,
    submitted_ms INTEGER NOT NULL,
    state        TEXT NOT NULL,
    version      INTEGER NOT NULL,
    spec         TEXT NOT NULL,
    machine      TEXT NOT NULL,
    summary      TEXT NOT NULL
) STRICT;
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    role       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE,
    note       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    used_ms    INTEGER
) STRICT;
CREATE TABLE webhooks (
    id           TEXT PRIMARY KEY,
    url          TEXT NOT NULL,
    secret       TEXT NOT NULL,
    created_ms   INTEGER NOT NULL,
    last_error   TEXT,
    delivered_ms INTEGER
) STRICT;
INSERT INTO "webhooks" VALUES('wh-62484231625d','http://127.0.0.1:1/hook','whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA',1795446889364,'the receiver cannot be reached: Connection refused (os error 111)',NULL);
INSERT INTO "webhooks" VALUES('wh-42cd139a77a9','http://127.0.0.1:2/hook','whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA',1795446889421,'the receiver cannot be reached: Connection refused (os error 111)',NULL);
CREATE INDEX runs_by_time ON runs (submitted_ms);
CREATE INDEX run_actions_pending ON run_actions (created_ms) WHERE done_ms IS NULL;
CREATE INDEX events_by_time ON events (at_ms);
CREATE INDEX events_by_run ON events (run, at_ms) WHERE run IS NOT NULL;
CREATE INDEX events_by_node ON events (node, at_ms) WHERE node IS NOT NULL;
CREATE INDEX alerts_by_state ON alerts (state, updated_ms);
CREATE INDEX outbox_due ON outbox (next_attempt_ms);
CREATE INDEX outbox_by_webhook ON outbox (webhook);
CREATE INDEX browser_sessions_by_token ON browser_sessions (token);
CREATE INDEX audit_by_time ON audit (at_ms);
COMMIT;
