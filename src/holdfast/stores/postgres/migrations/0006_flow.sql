-- Flow control: whose turn it is, and how full the buckets are. The rules themselves are pages of the book `flow`.
--
-- A due job of a queue with lanes waits under a path in place of its queue: the queue, chr(31), and the name of its lane, so that the
-- index of `waiting` is that of the lanes as well. It is stored as one that was touched, and so found by its id. One that was put aside
-- because its tenant or kind is paused waits under the queue, chr(31), `z`, its tenant, chr(31) and its kind.

-- Where the last claim of a queue stopped. Whoever claims by rules locks it first, so that such claims take turns; a row is there before
-- the first job stands in a lane, and stays.
CREATE TABLE IF NOT EXISTS {schema}.turn (
  queue text    PRIMARY KEY COLLATE "C",
  lane  text    NOT NULL DEFAULT '' COLLATE "C",
  used  integer NOT NULL DEFAULT 0,
  share integer NOT NULL DEFAULT 1
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- When a bucket is full again; one that is not here is full.
CREATE TABLE IF NOT EXISTS {schema}.bucket (
  queue   text   NOT NULL COLLATE "C",
  per     text   NOT NULL COLLATE "C",
  subject text   NOT NULL COLLATE "C",
  full_at bigint NOT NULL,
  PRIMARY KEY (queue, per, subject)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);

-- What a running job is counted by: queue, tenant and key, with chr(31) between; of jobs that were claimed under a rule. The table is small,
-- so the lock is short; and a job that no rule is for has no entry in the index.
ALTER TABLE {schema}.running ADD COLUMN IF NOT EXISTS lane text COLLATE "C";
CREATE INDEX IF NOT EXISTS running_lane ON {schema}.running (lane) WHERE lane IS NOT NULL;
