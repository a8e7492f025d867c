-- A chunk is sealed small and merged later (level 1); one that cannot be read is left alone (level -1). A chunk with a
-- resolution is a roll-up: buckets of so many milliseconds; min_ms and max_ms are the outer milliseconds of its outer ones.
ALTER TABLE chunks ADD COLUMN level INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chunks ADD COLUMN resolution_ms INTEGER NOT NULL DEFAULT 0;

-- The new columns lie behind the blob: what chooses chunks finds all it asks for in an index and reads no blob.
DROP INDEX chunks_by_group;
CREATE INDEX chunks_by_group ON chunks (group_id, resolution_ms, max_ms, min_ms, level, samples);
-- The oldest first: what ages out.
CREATE INDEX chunks_by_age ON chunks (max_ms, resolution_ms, group_id);
-- What waits to be merged.
CREATE INDEX chunks_unmerged ON chunks (resolution_ms, group_id, id, min_ms, max_ms, samples) WHERE level = 0;
