-- Statements that write moves: completions and checkpoints by the batch, every other move by itself, and heartbeats.

-- name: complete
-- The common ending, for a whole batch. It tells what it wrote, or NULL if that is all, which saves naming them.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
{endings}
SELECT {written}

-- name: endings
-- Nothing is joined, so no plan can be a bad one: the guards are in a hash table (the CASE keeps the planner from making a join of it), and
-- the results in an object by id. Whoever has credits set aside is left alone: they go back to the account another way.
done AS (
  DELETE FROM {schema}.running
  WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) AND CASE WHEN (job_id, token, lease_id) IN (
      SELECT each.id, each.token, each.lease_id
      FROM unnest(CAST(%(ids)s AS uuid[]), CAST(%(tokens)s AS integer[]), CAST(%(lease_ids)s AS text[])) AS each (id, token, lease_id)
    ) THEN true ELSE false END AND CASE WHEN flow IS NULL THEN true ELSE CAST(flow AS json) ->> 6 = '0' END
  RETURNING job_id, queue, version, generation, attempt, available_at, token, lease_id, lease_owner, claimed_at, begun_at, started_at,
    expires_at, cancel_requested, step_cursor, flow, (SELECT now FROM clock) AS now
),
{events}
kept AS (
  INSERT INTO {schema}.outcome (job_id, state, version, generation, attempt, crashes, available_at, token, lease_id, lease_owner, claimed_at,
    begun_at, started_at, finished_at, purge_at, expires_at, cancel_requested, step_cursor, result, flow)
  SELECT job_id, 'succeeded', version + 1, generation, attempt, 0, available_at, token, lease_id, lease_owner, claimed_at,
    begun_at, started_at, now, now + CAST(%(purge_after)s AS bigint), expires_at, cancel_requested, step_cursor,
    CAST(%(results)s AS jsonb) ->> CAST(job_id AS text), flow
  FROM done
),
tallied AS (
  INSERT INTO {schema}.tally (queue, state, jobs)
  SELECT gone.queue, each.state, each.jobs FROM (SELECT queue, count(*) AS jobs FROM done GROUP BY 1) AS gone
  CROSS JOIN LATERAL (VALUES ('running', -gone.jobs), ('succeeded', gone.jobs)) AS each (state, jobs)
)

-- name: written
CASE
  WHEN (SELECT count(*) FROM done) < cardinality(CAST(%(ids)s AS uuid[])) THEN ARRAY(SELECT CAST(job_id AS text) FROM done)
END

-- name: ended
-- A claim that also completes does that first: everybody locks what runs before what waits.
(SELECT count(*) FROM done) >= 0

-- name: beside
-- What was written is told also if nothing is claimed.
(SELECT {written} AS written) AS ending LEFT JOIN (

-- name: told
-- What is to be told of the moves of a batch that were written, in its order.
told AS (
  INSERT INTO {schema}.outbox (id, job_id, name, body, at)
  SELECT each.id, each.job_id, each.name, each.body, (SELECT now FROM clock)
  FROM unnest(CAST(%(event_ids)s AS text[]), CAST(%(event_jobs)s AS uuid[]), CAST(%(event_names)s AS text[]), CAST(%(event_bodies)s AS text[]))
    WITH ORDINALITY AS each (id, job_id, name, body, nth)
  WHERE CASE WHEN each.job_id IN (SELECT job_id FROM done) THEN true ELSE false END
  ORDER BY each.nth
),

-- name: checkpoint
-- Steps of a whole batch of different jobs, written as `complete` writes its batch: nothing is joined, and names and results are in objects
-- by id. A step that is on record already is looked for by its name, and its job left as it is.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
done AS (
  UPDATE {schema}.running SET version = version + 1, updated_at = (SELECT now FROM clock),
    step_cursor = step_cursor + CAST(%(advance)s AS integer), crashes = 0
  WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) AND NOT cancel_requested AND CASE WHEN (job_id, token, lease_id) IN (
      SELECT each.id, each.token, each.lease_id
      FROM unnest(CAST(%(ids)s AS uuid[]), CAST(%(tokens)s AS integer[]), CAST(%(lease_ids)s AS text[])) AS each (id, token, lease_id)
    ) THEN true ELSE false END AND (
      SELECT step.position FROM {schema}.step
      WHERE step.job_id = running.job_id AND step.name = CAST(%(steps)s AS jsonb) ->> CAST(running.job_id AS text)
    ) IS NULL
  RETURNING job_id, version
),
{more}
recorded AS (
  INSERT INTO {schema}.step (job_id, position, name, result, recorded_at)
  SELECT job_id, version, CAST(%(steps)s AS jsonb) ->> CAST(job_id AS text), CAST(%(results)s AS jsonb) ->> CAST(job_id AS text), clock.now
  FROM done, clock
)
SELECT job_id::text FROM done

-- name: write_from_created
gone AS (DELETE FROM {schema}.created WHERE job_id = CAST(%(id)s AS uuid) AND %(seen)s = 1 RETURNING job_id)

-- name: write_from_waiting
-- Found as an untouched job is, or as a touched one: only these wait elsewhere than in their queue.
gone AS (
  DELETE FROM {schema}.waiting
  WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM {schema}.waiting
      WHERE queue = CAST(%(queue)s AS text) AND rank = - CAST(%(priority)s AS bigint) AND available_at = CAST(%(available_before)s AS bigint)
        AND job_id = CAST(%(id)s AS uuid)
      UNION ALL
      SELECT ctid FROM {schema}.waiting WHERE job_id = CAST(%(id)s AS uuid) AND (past).version IS NOT NULL
    )) AND job_id = CAST(%(id)s AS uuid) AND coalesce((past).version, 1) = CAST(%(seen)s AS integer)
  RETURNING job_id
)

-- name: write_from_running
gone AS (DELETE FROM {schema}.running WHERE job_id = CAST(%(id)s AS uuid) AND version = CAST(%(seen)s AS integer) RETURNING job_id)

-- name: write_from_outcome
gone AS (DELETE FROM {schema}.outcome WHERE job_id = CAST(%(id)s AS uuid) AND version = CAST(%(seen)s AS integer) RETURNING job_id)

-- name: write_within_running
gone AS (
  UPDATE {schema}.running SET version = CAST(%(version)s AS integer), begun_at = CAST(%(begun_at)s AS bigint),
    updated_at = CAST(%(updated_at)s AS bigint), cancel_requested = CAST(%(cancel_requested)s AS boolean),
    step_cursor = CAST(%(step_cursor)s AS integer), crashes = CAST(%(crashes)s AS integer), flow = CAST(%(flow)s AS text)
  WHERE job_id = CAST(%(id)s AS uuid) AND version = CAST(%(seen)s AS integer) RETURNING job_id
)

-- name: write_to_waiting
kept AS (
  INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at, flow, past)
  SELECT CAST(%(queue)s AS text), - CAST(%(priority)s AS bigint), CAST(%(available_at)s AS bigint), job_id, CAST(%(expires_at)s AS bigint),
    CAST(%(flow)s AS text),
    ROW(%(state)s, %(version)s, %(generation)s, %(attempt)s, %(crashes)s, %(token)s, %(lease_id)s, %(lease_owner)s, %(claimed_at)s,
        %(begun_at)s, %(started_at)s, %(updated_at)s, %(failure_code)s, %(failure_message)s, %(failure_retryable)s,
        %(step_cursor)s)::{schema}.past
  FROM gone
)

-- name: write_to_outcome
kept AS (
  INSERT INTO {schema}.outcome (job_id, state, version, generation, attempt, crashes, available_at, token, lease_id, lease_owner, claimed_at,
    begun_at, started_at, finished_at, purge_at, expires_at, cause, failure_code, failure_message, failure_retryable, cancel_requested,
    step_cursor, result, flow)
  SELECT job_id, %(state)s, %(version)s, %(generation)s, %(attempt)s, %(crashes)s, %(available_at)s, %(token)s, %(lease_id)s, %(lease_owner)s,
    %(claimed_at)s, %(begun_at)s, %(started_at)s, %(finished_at)s, %(purge_at)s, %(expires_at)s, %(cause)s, %(failure_code)s,
    %(failure_message)s, %(failure_retryable)s, %(cancel_requested)s, %(step_cursor)s, %(result)s,
    CAST(%(flow)s AS text)
  FROM gone
)

-- name: write_tally
counted AS (
  INSERT INTO {schema}.tally (queue, state, jobs)
  SELECT CAST(%(queue)s AS text), each.state, each.jobs
  FROM gone, (VALUES (CAST(%(state_before)s AS text), -1), (CAST(%(state)s AS text), 1)) AS each (state, jobs)
)

-- name: write_attempt
ended AS (
  INSERT INTO {schema}.attempt
  SELECT job_id, %(ended_token)s, %(ended_generation)s, %(ended_attempt)s, %(ended_owner)s, %(ended_claimed_at)s, %(ended_ended_at)s,
    %(ended_outcome)s, %(ended_code)s, %(ended_message)s, %(ended_traceback)s
  FROM gone
)

-- name: write_step
-- Recorded once, whatever asks for it again.
recorded AS (
  INSERT INTO {schema}.step (job_id, position, name, result, recorded_at)
  SELECT job_id, %(version)s, %(step)s, %(step_result)s, %(updated_at)s FROM gone ON CONFLICT (job_id, name) DO NOTHING
)

-- name: write_signal
sent AS (
  INSERT INTO {schema}.signal (job_id, id, position, name, payload, sent_at)
  SELECT job_id, %(signal_id)s, %(version)s, %(signal_name)s, %(signal_payload)s, %(updated_at)s FROM gone
)

-- name: write_events
told AS (
  INSERT INTO {schema}.outbox (id, job_id, name, body, at)
  SELECT each.id, gone.job_id, each.name, each.body, %(updated_at)s
  FROM gone, unnest(CAST(%(event_ids)s AS text[]), CAST(%(event_names)s AS text[]), CAST(%(event_bodies)s AS text[]))
    WITH ORDINALITY AS each (id, name, body, nth)
  ORDER BY each.nth
)

-- name: lock_running
SELECT 1 FROM {schema}.running WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) ORDER BY job_id FOR UPDATE

-- name: steps_known
SELECT each.id::text, each.name FROM unnest(CAST(%(ids)s AS uuid[]), CAST(%(names)s AS text[])) AS each (id, name)
WHERE (SELECT step.position FROM {schema}.step WHERE step.job_id = each.id AND step.name = each.name) IS NOT NULL

-- name: heartbeat
-- Nothing is joined here either.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now)
UPDATE {schema}.running SET version = version + 1, lease_expires_at = (SELECT now FROM clock) + CAST(%(lease)s AS bigint),
  updated_at = (SELECT now FROM clock),
  {more}
  begun_at = CASE
    WHEN begun_at IS NULL AND job_id IN (SELECT unnest(CAST(%(begun)s AS uuid[]))) THEN (SELECT now FROM clock) ELSE begun_at END
WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) AND CASE WHEN (job_id, token, lease_id) IN (
    SELECT each.id, each.token, each.lease_id
    FROM unnest(CAST(%(ids)s AS uuid[]), CAST(%(tokens)s AS integer[]), CAST(%(lease_ids)s AS text[])) AS each (id, token, lease_id)
  ) THEN true ELSE false END
RETURNING job_id::text, cancel_requested

-- name: progress
-- Those that have news of their progress, by id; the others keep the flow they have.
flow = coalesce(CAST(jsonb_set(CAST(coalesce(flow, %(plain)s) AS jsonb), '{9}', CAST(%(progress)s AS jsonb) -> CAST(job_id AS text)) AS text), flow),

-- name: abandon
UPDATE {schema}.running SET version = version + 1, lease_expires_at = clock.now, updated_at = clock.now
FROM (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now) AS clock WHERE lease_owner = %(owner)s
