-- Jobs that come from another store with their whole past, or go there.

-- name: parcel_attempts
SELECT job_id::text, token, generation, attempt, owner, claimed_at, ended_at, outcome, code, message, traceback
FROM {schema}.attempt WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) ORDER BY job_id, token

-- name: parcel_steps
SELECT job_id::text, name, result, recorded_at FROM {schema}.step WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) ORDER BY job_id, position

-- name: parcel_signals
SELECT job_id::text, id, name, payload, sent_at FROM {schema}.signal WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) ORDER BY job_id, position

-- name: parcel_keys
SELECT job_id::text, expires_at FROM {schema}.job_key
WHERE (tenant, key) IN (SELECT * FROM unnest(CAST(%(tenants)s AS text[]), CAST(%(keys)s AS text[]))) AND job_id = ANY (CAST(%(ids)s AS uuid[]))
  AND (expires_at IS NULL OR expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()))

-- name: adopt_key
-- Taken if it is free, if its time is over, or if it is what the job left behind; the owner is given in any case, and the row locked.
INSERT INTO {schema}.job_key AS held (tenant, key, job_id, expires_at)
VALUES (%(tenant)s, %(key)s, CAST(%(id)s AS uuid), CAST(%(keyed_until)s AS bigint))
ON CONFLICT (tenant, key) DO UPDATE SET
  job_id = CASE WHEN held.job_id = excluded.job_id OR held.expires_at <= CAST(%(now)s AS bigint) THEN excluded.job_id ELSE held.job_id END,
  expires_at = CASE WHEN held.job_id = excluded.job_id OR held.expires_at <= CAST(%(now)s AS bigint)
    THEN excluded.expires_at ELSE held.expires_at END
RETURNING job_id::text

-- name: forsake
-- Removes what was left of a job that comes back.
WITH gone AS (DELETE FROM {schema}.outcome WHERE job_id = CAST(%(id)s AS uuid) AND version = CAST(%(version)s AS integer) RETURNING job_id),
job AS (DELETE FROM {schema}.job WHERE id = ANY (ARRAY(SELECT job_id FROM gone)) RETURNING queue),
attempts AS (DELETE FROM {schema}.attempt WHERE job_id = ANY (ARRAY(SELECT job_id FROM gone))),
steps AS (DELETE FROM {schema}.step WHERE job_id = ANY (ARRAY(SELECT job_id FROM gone))),
signals AS (DELETE FROM {schema}.signal WHERE job_id = ANY (ARRAY(SELECT job_id FROM gone))),
children AS (DELETE FROM {schema}.child WHERE job_id = ANY (ARRAY(SELECT job_id FROM gone))),
keys AS (DELETE FROM {schema}.job_key WHERE tenant = CAST(%(tenant)s AS text) AND key = CAST(%(key)s AS text) AND job_id = CAST(%(id)s AS uuid))
INSERT INTO {schema}.tally (queue, state, jobs) SELECT queue, 'cancelled', -1 FROM job RETURNING 1

-- name: adopt_job
INSERT INTO {schema}.job (id, kind, queue, tenant, "user", priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key,
                          created_at, steps_total, due_at, parent, code_version)
VALUES (CAST(%(id)s AS uuid), %(kind)s, %(queue)s, %(tenant)s, %(user)s, %(priority)s, %(payload)s, %(retry)s, %(max_attempts)s, %(crash_cap)s,
        %(trigger)s, %(trace_id)s, %(key)s, %(created_at)s, %(steps_total)s, %(available_at)s, CAST(%(parent)s AS uuid), %(code_version)s)
RETURNING 1

-- name: adopt_waiting
INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at, flow, past)
VALUES (%(queue)s, - CAST(%(priority)s AS bigint), %(available_at)s, CAST(%(id)s AS uuid), %(expires_at)s, %(flow)s,
  ROW(%(state)s, %(version)s, %(generation)s, %(attempt)s, %(crashes)s, %(token)s, %(lease_id)s, %(lease_owner)s, %(claimed_at)s,
      %(begun_at)s, %(started_at)s, %(updated_at)s, %(failure_code)s, %(failure_message)s, %(failure_retryable)s,
      %(step_cursor)s)::{schema}.past)
RETURNING 1

-- name: adopt_outcome
INSERT INTO {schema}.outcome (job_id, state, version, generation, attempt, crashes, available_at, token, lease_id, lease_owner, claimed_at,
  begun_at, started_at, finished_at, purge_at, expires_at, cause, failure_code, failure_message, failure_retryable, cancel_requested,
  step_cursor, result, flow)
VALUES (CAST(%(id)s AS uuid), %(state)s, %(version)s, %(generation)s, %(attempt)s, %(crashes)s, %(available_at)s, %(token)s, %(lease_id)s,
  %(lease_owner)s, %(claimed_at)s, %(begun_at)s, %(started_at)s, %(finished_at)s, %(purge_at)s, %(expires_at)s, %(cause)s, %(failure_code)s,
  %(failure_message)s, %(failure_retryable)s, %(cancel_requested)s, %(step_cursor)s, %(result)s, %(flow)s)
RETURNING 1

-- name: adopt_tally
INSERT INTO {schema}.tally (queue, state, jobs) VALUES (%(queue)s, %(state)s, 1) RETURNING 1

-- name: adopt_child
INSERT INTO {schema}.child (job_id, parent) VALUES (CAST(%(id)s AS uuid), CAST(%(parent)s AS uuid)) RETURNING 1

-- name: adopt_attempt
INSERT INTO {schema}.attempt (job_id, token, generation, attempt, owner, claimed_at, ended_at, outcome, code, message, traceback)
VALUES (CAST(%(id)s AS uuid), %(token)s, %(generation)s, %(attempt)s, %(owner)s, %(claimed_at)s, %(ended_at)s, %(outcome)s, %(code)s,
        %(message)s, %(traceback)s)
RETURNING 1

-- name: adopt_step
-- They stand before all that the job records here, whose positions are its versions.
INSERT INTO {schema}.step (job_id, position, name, result, recorded_at)
VALUES (CAST(%(job)s AS uuid), %(position)s, %(name)s, %(result)s, %(recorded_at)s) RETURNING 1

-- name: adopt_signal
INSERT INTO {schema}.signal (job_id, id, position, name, payload, sent_at)
VALUES (CAST(%(job)s AS uuid), %(id)s, %(position)s, %(name)s, %(payload)s, %(sent_at)s) RETURNING 1
