-- Checkpoints that a person wants kept, by path: a pin of one run holds for every run that uses the folder. The run's machine has its own
-- pins too; this is for the others to find.
CREATE TABLE checkpoint_pins (
    path TEXT NOT NULL,
    run  TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    PRIMARY KEY (path, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX checkpoint_pins_by_run ON checkpoint_pins (run);

INSERT INTO checkpoint_pins (path, run)
SELECT pinned.value, runs.id
FROM runs, json_each(CASE WHEN json_valid(runs.machine) THEN runs.machine ELSE '{}' END, '$.storage.pinned') AS pinned
WHERE pinned.type = 'text';
