-- For people and dashboards: every job in one row, with times that can be read, and without its payload or result.

CREATE FUNCTION {schema}.moment(micros bigint) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT timestamptz 'epoch' + micros * interval '1 microsecond' $$;

-- Each part says its state outright, so that whoever asks for one state reads no other part. A waiting job that was never touched
-- is found through what `job` says of it, as everywhere.
CREATE VIEW {schema}.jobs AS
SELECT job.id, stands.state, job.queue, job.kind, job.tenant, job.priority, stands.attempt, job.max_attempts, stands.generation,
  {schema}.moment(job.created_at) AS created_at, {schema}.moment(stands.available_at) AS available_at,
  {schema}.moment(stands.started_at) AS started_at, {schema}.moment(stands.finished_at) AS finished_at, stands.cause, stands.failure_code,
  stands.worker, {schema}.moment(stands.lease_expires_at) AS lease_expires_at
FROM {schema}.job JOIN (
  SELECT job_id, 'created'::text AS state, 0 AS attempt, 1 AS generation, available_at, NULL::bigint AS started_at, NULL::bigint AS finished_at,
    NULL::text AS cause, NULL::text AS failure_code, NULL::text AS worker, NULL::bigint AS lease_expires_at
  FROM {schema}.created
  UNION ALL
  SELECT job_id, 'queued', (past).attempt, (past).generation, available_at, (past).started_at, NULL, NULL, NULL, NULL, NULL
  FROM {schema}.waiting WHERE (past).version IS NOT NULL AND (past).state = 'queued'
  UNION ALL
  SELECT job_id, 'retrying', (past).attempt, (past).generation, available_at, (past).started_at, NULL, NULL, (past).failure_code, NULL, NULL
  FROM {schema}.waiting WHERE (past).version IS NOT NULL AND (past).state = 'retrying'
  UNION ALL
  SELECT job_id, 'running', attempt, generation, available_at, started_at, NULL, NULL, failure_code, lease_owner, lease_expires_at
  FROM {schema}.running
  UNION ALL
  SELECT job_id, 'succeeded', attempt, generation, available_at, started_at, finished_at, NULL, NULL, NULL, NULL
  FROM {schema}.outcome WHERE state = 'succeeded'
  UNION ALL
  SELECT job_id, 'dead', attempt, generation, available_at, started_at, finished_at, cause, failure_code, NULL, NULL
  FROM {schema}.outcome WHERE state = 'dead'
  UNION ALL
  SELECT job_id, 'cancelled', attempt, generation, available_at, started_at, finished_at, NULL, failure_code, NULL, NULL
  FROM {schema}.outcome WHERE state = 'cancelled'
) AS stands ON stands.job_id = job.id
UNION ALL
SELECT job.id, 'queued', job.queue, job.kind, job.tenant, job.priority, 0, job.max_attempts, 1, {schema}.moment(job.created_at),
  {schema}.moment(waiting.available_at), NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}.job JOIN {schema}.waiting
  ON waiting.queue = job.queue AND waiting.rank = - job.priority::bigint AND waiting.available_at = job.due_at AND waiting.job_id = job.id
WHERE (waiting.past).version IS NULL;

-- How many jobs of each queue are in each state: from the counters, so that no job is read.
CREATE VIEW {schema}.counts AS
SELECT queue, state, sum(jobs)::bigint AS jobs FROM {schema}.tally GROUP BY queue, state HAVING sum(jobs) <> 0;
