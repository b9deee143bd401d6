-- Workflows, credits, schedules and events. Columns are added without rewriting a table, and every index is of a new table, so locks are
-- short and workers go on meanwhile.

ALTER TABLE {schema}.job ADD COLUMN IF NOT EXISTS parent uuid, ADD COLUMN IF NOT EXISTS code_version integer NOT NULL DEFAULT 0;
-- A job's flow, where it has one, goes along from place to place: a JSON array of what `Flow` holds, in its order.
ALTER TABLE {schema}.created ADD COLUMN IF NOT EXISTS flow text, ADD COLUMN IF NOT EXISTS step_cursor integer NOT NULL DEFAULT 0;
ALTER TABLE {schema}.waiting ADD COLUMN IF NOT EXISTS flow text;
ALTER TABLE {schema}.running ADD COLUMN IF NOT EXISTS flow text;
ALTER TABLE {schema}.outcome ADD COLUMN IF NOT EXISTS flow text;

-- The children of jobs. An index of `job` would do as well, but to make one, every job ever stored would have to be read under a lock.
CREATE TABLE IF NOT EXISTS {schema}.child (
  job_id uuid PRIMARY KEY,
  parent uuid NOT NULL
);
CREATE INDEX IF NOT EXISTS child_parent ON {schema}.child (parent, job_id);

-- `position` is the job's version that came with it, as it is in `step` from now on: it grows with every record of a job.
CREATE TABLE IF NOT EXISTS {schema}.signal (
  job_id   uuid    NOT NULL,
  id       text    NOT NULL COLLATE "C",
  position integer NOT NULL,
  name     text    NOT NULL,
  payload  text,
  sent_at  bigint  NOT NULL,
  PRIMARY KEY (job_id, id)
);

-- Never overspent, also by a statement typed by hand.
CREATE TABLE IF NOT EXISTS {schema}.credit_account (
  tenant   text   PRIMARY KEY COLLATE "C",
  granted  bigint NOT NULL,
  reserved bigint NOT NULL CHECK (reserved >= 0),
  spent    bigint NOT NULL CHECK (spent >= 0),
  CHECK (reserved + spent <= granted)
);

-- Whoever writes one holds the lock of its account, so the numbers of a tenant's entries grow in the order of its changes.
CREATE TABLE IF NOT EXISTS {schema}.credit_entry (
  number     bigint  GENERATED ALWAYS AS IDENTITY,
  tenant     text    NOT NULL COLLATE "C",
  verb       text    NOT NULL,
  job_id     uuid,
  generation integer NOT NULL,
  step       text,
  granted    bigint  NOT NULL,
  reserved   bigint  NOT NULL,
  spent      bigint  NOT NULL,
  at         bigint  NOT NULL,
  PRIMARY KEY (tenant, number)
);
CREATE UNIQUE INDEX IF NOT EXISTS credit_entry_grant ON {schema}.credit_entry (tenant, step) WHERE verb = 'grant';

CREATE TABLE IF NOT EXISTS {schema}.schedule (
  name    text    PRIMARY KEY COLLATE "C",
  spec    text    NOT NULL,
  next_at bigint  NOT NULL,
  last_at bigint,
  paused  boolean NOT NULL,
  version integer NOT NULL
);

-- Events as moves write them. The numbers of this table say nothing about which transaction commits first.
CREATE TABLE IF NOT EXISTS {schema}.outbox (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id     text   NOT NULL,
  job_id uuid   NOT NULL,
  name   text   NOT NULL,
  body   text   NOT NULL,
  at     bigint NOT NULL
);

-- Events as they are listed: taken from the outbox once they are committed, by one who holds the lock of `event_tail`. So whatever becomes
-- visible later has a later position.
CREATE TABLE IF NOT EXISTS {schema}.event (
  position bigint PRIMARY KEY,
  id       text   NOT NULL,
  job_id   uuid   NOT NULL,
  name     text   NOT NULL,
  body     text   NOT NULL,
  at       bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.event_tail (position bigint NOT NULL);
INSERT INTO {schema}.event_tail SELECT 0 WHERE NOT EXISTS (SELECT FROM {schema}.event_tail);

CREATE TABLE IF NOT EXISTS {schema}.sink (
  name     text   PRIMARY KEY COLLATE "C",
  position bigint NOT NULL
);

-- Rows come and go in the outbox as they do in `running`; and the tail is written with every event that is listed.
ALTER TABLE {schema}.outbox SET (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.event_tail SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, fillfactor = 10);

-- The view of jobs, with what belongs to workflows.
CREATE OR REPLACE VIEW {schema}.jobs AS
SELECT job.id, stands.state, job.queue, job.kind, job.tenant, job.priority, stands.attempt, job.max_attempts, stands.generation,
  {schema}.moment(job.created_at) AS created_at, {schema}.moment(stands.available_at) AS available_at,
  {schema}.moment(stands.started_at) AS started_at, {schema}.moment(stands.finished_at) AS finished_at, stands.cause, stands.failure_code,
  stands.worker, {schema}.moment(stands.lease_expires_at) AS lease_expires_at, job.parent, job.code_version, stands.step_cursor,
  job.steps_total
FROM {schema}.job JOIN (
  SELECT job_id, 'created'::text AS state, 0 AS attempt, 1 AS generation, available_at, NULL::bigint AS started_at, NULL::bigint AS finished_at,
    NULL::text AS cause, NULL::text AS failure_code, NULL::text AS worker, NULL::bigint AS lease_expires_at, step_cursor
  FROM {schema}.created
  UNION ALL
  SELECT job_id, 'queued', (past).attempt, (past).generation, available_at, (past).started_at, NULL, NULL, NULL, NULL, NULL, (past).step_cursor
  FROM {schema}.waiting WHERE (past).version IS NOT NULL AND (past).state = 'queued'
  UNION ALL
  SELECT job_id, 'retrying', (past).attempt, (past).generation, available_at, (past).started_at, NULL, NULL, (past).failure_code, NULL, NULL,
    (past).step_cursor
  FROM {schema}.waiting WHERE (past).version IS NOT NULL AND (past).state = 'retrying'
  UNION ALL
  SELECT job_id, 'running', attempt, generation, available_at, started_at, NULL, NULL, failure_code, lease_owner, lease_expires_at, step_cursor
  FROM {schema}.running
  UNION ALL
  SELECT job_id, 'succeeded', attempt, generation, available_at, started_at, finished_at, NULL, NULL, NULL, NULL, step_cursor
  FROM {schema}.outcome WHERE state = 'succeeded'
  UNION ALL
  SELECT job_id, 'dead', attempt, generation, available_at, started_at, finished_at, cause, failure_code, NULL, NULL, step_cursor
  FROM {schema}.outcome WHERE state = 'dead'
  UNION ALL
  SELECT job_id, 'cancelled', attempt, generation, available_at, started_at, finished_at, NULL, failure_code, NULL, NULL, step_cursor
  FROM {schema}.outcome WHERE state = 'cancelled'
) AS stands ON stands.job_id = job.id
UNION ALL
SELECT job.id, 'queued', job.queue, job.kind, job.tenant, job.priority, 0, job.max_attempts, 1, {schema}.moment(job.created_at),
  {schema}.moment(waiting.available_at), NULL, NULL, NULL, NULL, NULL, NULL, job.parent, job.code_version, 0, job.steps_total
FROM {schema}.job JOIN {schema}.waiting
  ON waiting.queue = job.queue AND waiting.rank = - job.priority::bigint AND waiting.available_at = job.due_at AND waiting.job_id = job.id
WHERE (waiting.past).version IS NULL;
