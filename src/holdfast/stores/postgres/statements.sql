-- name: envelope
-- The columns of a JobRecord that never change, in its order; the next one, `expires_at`, lies where the job stands.
job.id::text, job.kind, job.queue, job.tenant, job."user", job.priority, job.payload, job.retry, job.max_attempts, job.crash_cap, job.trigger,
job.trace_id, job.key, job.created_at

-- name: created_columns
{envelope}, place.expires_at, job.steps_total, 'created', 1, 1, 0, 0, place.available_at, 0,
NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, job.created_at, NULL::bigint,
NULL::text, NULL::text, NULL::text, NULL::boolean, false, place.step_cursor, NULL::text, job.parent::text, job.code_version, place.flow

-- name: waiting_columns
{envelope}, place.expires_at, job.steps_total, coalesce((place.past).state, 'queued'), coalesce((place.past).version, 1),
coalesce((place.past).generation, 1), coalesce((place.past).attempt, 0), coalesce((place.past).crashes, 0), place.available_at,
coalesce((place.past).token, 0), (place.past).lease_id, (place.past).lease_owner, NULL::bigint, (place.past).claimed_at, (place.past).begun_at,
(place.past).started_at, NULL::bigint, coalesce((place.past).updated_at, job.created_at), NULL::bigint, NULL::text,
(place.past).failure_code, (place.past).failure_message, (place.past).failure_retryable, false, coalesce((place.past).step_cursor, 0), NULL::text,
job.parent::text, job.code_version, place.flow

-- name: running_columns
{envelope}, place.expires_at, job.steps_total, 'running', place.version, place.generation, place.attempt, place.crashes, place.available_at,
place.token, place.lease_id, place.lease_owner, place.lease_expires_at, place.claimed_at, place.begun_at, place.started_at, NULL::bigint,
place.updated_at, NULL::bigint, NULL::text, place.failure_code, place.failure_message, place.failure_retryable, place.cancel_requested,
place.step_cursor, NULL::text, job.parent::text, job.code_version, place.flow

-- name: outcome_columns
{envelope}, place.expires_at, job.steps_total, place.state, place.version, place.generation, place.attempt, place.crashes, place.available_at,
place.token, place.lease_id, place.lease_owner, NULL::bigint, place.claimed_at, place.begun_at, place.started_at, place.finished_at,
place.finished_at, place.purge_at, place.cause, place.failure_code, place.failure_message, place.failure_retryable, place.cancel_requested,
place.step_cursor, place.result, job.parent::text, job.code_version, place.flow

-- name: make_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: make_migration_table
CREATE TABLE IF NOT EXISTS {schema}.migration (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())

-- name: schema_version
SELECT count(*) FROM {schema}.migration

-- name: record_migration
INSERT INTO {schema}.migration VALUES (%(number)s, %(file)s)

-- name: listen
LISTEN holdfast_{schema}

-- name: now
SELECT {schema}.micros()

-- name: insert
-- Jobs that differ in id, payload, key and due time only. Ids and payloads travel as one text each, which costs a driver next to nothing;
-- JSON holds no raw control character, so one can part them.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
input AS MATERIALIZED (
  SELECT CAST(each.id AS uuid) AS id, each.payload, each.key, coalesce(each.run_at, clock.now + CAST(%(delay)s AS bigint)) AS available_at,
    clock.now, greatest(coalesce(each.run_at, clock.now + CAST(%(delay)s AS bigint)), clock.now) + CAST(%(expires_after)s AS bigint) AS expires_at
  FROM clock, unnest(string_to_array(CAST(%(ids)s AS text), ','), string_to_array(CAST(%(payloads)s AS text), chr(31)),
                     CAST(%(keys)s AS text[]), CAST(%(run_ats)s AS bigint[])) AS each (id, payload, key, run_at)
),
stored AS (
  INSERT INTO {schema}.job (id, kind, queue, tenant, "user", priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key,
                            created_at, steps_total, due_at, code_version)
  SELECT input.id, CAST(%(kind)s AS text), CAST(%(queue)s AS text), CAST(%(tenant)s AS text), CAST(%(user)s AS text),
    CAST(%(priority)s AS integer), input.payload, CAST(%(retry)s AS text), CAST(%(max_attempts)s AS integer),
    CAST(%(crash_cap)s AS integer), CAST(%(trigger)s AS text), CAST(%(trace_id)s AS text), input.key, input.now,
    CAST(%(steps_total)s AS integer), input.available_at, CAST(%(code_version)s AS integer)
  FROM input
),
created AS (
  INSERT INTO {schema}.created (job_id, available_at, expires_at)
  SELECT id, available_at, expires_at FROM input WHERE CAST(%(state)s AS text) = 'created'
),
waiting AS (
  INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at)
  SELECT CAST(%(queue)s AS text), - CAST(%(priority)s AS bigint), available_at, id, expires_at FROM input
  WHERE CAST(%(state)s AS text) = 'queued'
),
counted AS (
  INSERT INTO {schema}.tally (queue, state, jobs)
  VALUES (CAST(%(queue)s AS text), CAST(%(state)s AS text), CAST(%(jobs)s AS bigint))
)
SELECT now{more} FROM clock

-- name: insert_one
-- The same for one job that has no key and waits: the most common call, with the least around it; and, maybe, the notification, which is
-- sent when it commits.
WITH stored AS (
  INSERT INTO {schema}.job (id, kind, queue, tenant, "user", priority, payload, retry, max_attempts, crash_cap, trigger, trace_id,
                            created_at, steps_total, due_at, code_version)
  VALUES (%(id)s, %(kind)s, %(queue)s, %(tenant)s, %(user)s, %(priority)s, %(payload)s, %(retry)s, %(max_attempts)s, %(crash_cap)s, %(trigger)s,
          %(trace_id)s, {now}, %(steps_total)s, {due}, %(code_version)s)
),
counted AS (INSERT INTO {schema}.tally (queue, state, jobs) VALUES (%(queue)s, 'queued', 1))
INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at)
VALUES (%(queue)s, - CAST(%(priority)s AS bigint), {due}, %(id)s,
        {expires})
RETURNING {now}{more}

-- name: asked_now
coalesce(CAST(%(now)s AS bigint), {schema}.micros())

-- name: asked_due
coalesce(CAST(%(run_at)s AS bigint), {now} + CAST(%(delay)s AS bigint))

-- name: asked_expires
greatest({due}, {now}) + CAST(%(expires_after)s AS bigint)

-- name: calling
, pg_notify(%(channel)s, %(message)s)

-- name: copy_jobs
-- Jobs without a key, many at once; the rows are made in `loading`.
COPY {schema}.job (id, kind, queue, tenant, "user", priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, created_at, steps_total,
                   due_at, code_version) FROM STDIN (FORMAT binary)

-- name: copy_waiting
COPY {schema}.waiting (queue, rank, available_at, job_id, expires_at) FROM STDIN (FORMAT binary)

-- name: count_stored
INSERT INTO {schema}.tally (queue, state, jobs)
SELECT queue, 'queued', jobs FROM unnest(CAST(%(queues)s AS text[]), CAST(%(jobs)s AS bigint[])) AS each (queue, jobs)

-- name: take_keys
-- In one order, so that two who take the same keys wait for each other and never in a circle. Those that are free, or whose time is over, are
-- given back.
INSERT INTO {schema}.job_key AS held (tenant, key, job_id, expires_at)
SELECT each.tenant, each.key, CAST(each.id AS uuid), coalesce(CAST(%(now)s AS bigint), {schema}.micros()) + each.ttl
FROM unnest(CAST(%(tenants)s AS text[]), CAST(%(keys)s AS text[]), CAST(%(ids)s AS text[]), CAST(%(ttls)s AS bigint[]))
  AS each (tenant, key, id, ttl)
ORDER BY each.tenant, each.key
ON CONFLICT (tenant, key) DO UPDATE SET job_id = excluded.job_id, expires_at = excluded.expires_at
  WHERE held.expires_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
RETURNING job_id::text

-- name: key_owners
SELECT tenant, key, job_id::text FROM {schema}.job_key
WHERE (tenant, key) IN (SELECT * FROM unnest(CAST(%(tenants)s AS text[]), CAST(%(keys)s AS text[])))

-- name: all_lanes
-- Every lane that has a waiting job, found by leaping from one to the next along the index; what waits under rules is leapt over. What is gone
-- may lie before a lane's first job by the million, if a long transaction keeps it: so it is passed over once, and a lane begins at that job.
RECURSIVE front (queue, rank, at) AS (
  (SELECT queue, rank, available_at FROM {schema}.waiting ORDER BY queue, rank, available_at LIMIT 1)
  UNION ALL
  SELECT next.queue, next.rank, next.available_at FROM front
  CROSS JOIN LATERAL (
    SELECT waiting.queue, waiting.rank, waiting.available_at FROM {schema}.waiting
    WHERE (waiting.queue, waiting.rank) > (
      CASE WHEN strpos(front.queue, chr(31)) = 0 THEN front.queue ELSE split_part(front.queue, chr(31), 1) || chr(32) END,
      CASE WHEN strpos(front.queue, chr(31)) = 0 THEN front.rank ELSE -9223372036854775808 END)
    ORDER BY waiting.queue, waiting.rank, waiting.available_at LIMIT 1
  ) AS next
),
wanted (queue, most) AS (
  SELECT DISTINCT name.queue, CAST(%(limit)s AS integer) FROM front CROSS JOIN LATERAL (SELECT split_part(front.queue, chr(31), 1) AS queue) AS name
  WHERE name.queue <> ALL (CAST(%(full)s AS text[])) AND name.queue NOT IN (SELECT queue FROM {schema}.paused_queue)
),
lane (queue, most, rank, mark_at, mark_id) AS MATERIALIZED (
  SELECT wanted.queue, wanted.most, front.rank, front.at, CAST('00000000-0000-0000-0000-000000000000' AS uuid)
  FROM front JOIN wanted ON wanted.queue = front.queue
)

-- name: named_lanes
RECURSIVE wanted (queue, most) AS MATERIALIZED (
  SELECT each.queue, each.most FROM unnest(CAST(%(queues)s AS text[]), CAST(%(most)s AS integer[])) AS each (queue, most)
  WHERE each.queue NOT IN (SELECT queue FROM {schema}.paused_queue)
),
{ranks}

-- name: ranks
lane (queue, most, rank, mark_at, mark_id) AS (
  SELECT wanted.queue, wanted.most, first.rank, first.available_at, CAST('00000000-0000-0000-0000-000000000000' AS uuid)
  FROM wanted
  CROSS JOIN LATERAL (
    SELECT rank, available_at FROM {schema}.waiting WHERE waiting.queue = wanted.queue ORDER BY queue, rank, available_at LIMIT 1
  ) AS first
  UNION ALL
  SELECT lane.queue, lane.most, next.rank, next.available_at, lane.mark_id FROM lane
  CROSS JOIN LATERAL (
    SELECT waiting.rank, waiting.available_at FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank > lane.rank ORDER BY queue, rank, available_at LIMIT 1
  ) AS next
)

-- name: marked_lanes
lane (queue, most, rank, mark_at, mark_id) AS MATERIALIZED (
  SELECT each.queue, each.most, each.rank, each.mark_at, CAST(each.mark_id AS uuid)
  FROM unnest(CAST(%(queues)s AS text[]), CAST(%(most)s AS integer[]), CAST(%(ranks)s AS bigint[]), CAST(%(mark_ats)s AS bigint[]),
              CAST(%(mark_ids)s AS text[])) AS each (queue, most, rank, mark_at, mark_id)
  WHERE each.queue NOT IN (SELECT queue FROM {schema}.paused_queue)
)

-- name: claim
-- First how many to take from each lane, without locking anything; then exactly so many are locked, passing over what others hold. A lone
-- lane needs no sharing out, and then `seen` and `share` are not even looked at.
WITH {lanes},
clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
{ends}{first}seen AS MATERIALIZED (
  SELECT lane.queue, lane.rank, best.available_at, best.job_id, lane.most,
    row_number() OVER (PARTITION BY lane.queue ORDER BY lane.rank, best.available_at, best.job_id) AS nth
  FROM {open} AS lane CROSS JOIN LATERAL (
    SELECT waiting.available_at, waiting.job_id FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
      AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
      AND {seen}
    ORDER BY waiting.available_at, waiting.job_id LIMIT lane.most
  ) AS best
),
share AS MATERIALIZED (
  SELECT queue, rank, count(*) AS jobs FROM (
    SELECT queue, rank FROM seen WHERE nth <= most ORDER BY rank, available_at, job_id LIMIT CAST(%(limit)s AS integer)
  ) AS first GROUP BY queue, rank
),
picked AS MATERIALIZED (
  SELECT found.place, found.job_id FROM {open} AS lane
  CROSS JOIN LATERAL (
    SELECT CASE
      WHEN (SELECT count(*) FROM lane) = 1 THEN least(lane.most, CAST(%(limit)s AS integer))
      ELSE coalesce((SELECT share.jobs FROM share WHERE share.queue = lane.queue AND share.rank = lane.rank), 0)
    END AS jobs
  ) AS room
  {edge}
  CROSS JOIN LATERAL (
    SELECT waiting.ctid AS place, waiting.job_id FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
      AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
      AND {tried}
    ORDER BY waiting.available_at, waiting.job_id LIMIT room.jobs FOR UPDATE SKIP LOCKED
  ) AS found
  WHERE {ended}
),
{taken}

-- name: claim_lone
-- The same where all that waits is of one lane, which is the most common: one that a claim has met before. If any other is there, or the
-- queue is paused, nothing is taken, and the claim goes the longer way.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
{ends}first AS MATERIALIZED (
  SELECT waiting.available_at, waiting.job_id, waiting.xmax = '0' AS free FROM {schema}.waiting
  WHERE waiting.queue = CAST(%(queue)s AS text) AND waiting.rank = CAST(%(rank)s AS bigint)
    AND (waiting.available_at, waiting.job_id) > (CAST(%(mark_at)s AS bigint), CAST(%(mark_id)s AS uuid))
    AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
    AND {ended} AND NOT EXISTS (SELECT FROM {schema}.paused_queue WHERE paused_queue.queue = CAST(%(queue)s AS text))
    {more}
  ORDER BY waiting.available_at, waiting.job_id LIMIT 1
),
{edge}picked AS MATERIALIZED (
  SELECT waiting.ctid AS place FROM {schema}.waiting
  WHERE waiting.queue = CAST(%(queue)s AS text) AND waiting.rank = CAST(%(rank)s AS bigint)
    AND (waiting.available_at, waiting.job_id) >= ((SELECT available_at FROM first), (SELECT job_id FROM first))
    AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
    AND {tried}
  ORDER BY waiting.available_at, waiting.job_id LIMIT CAST(%(limit)s AS integer) FOR UPDATE SKIP LOCKED
),
{taken}

-- name: claim_ready
-- The same for a worker that rests and is called: nearly always there is one job, which nobody touched. After a pause the server runs at a third
-- of its speed, and each part of a statement costs by being there: so this one has no gate, looks once, and passes over what looks held. That
-- there are no rules it sees for itself, because to ask for them first would take as long as the claim. If it finds nothing, the claim goes the
-- longer way.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
{taken}

-- name: picked_ready
SELECT waiting.ctid FROM {schema}.waiting
    WHERE waiting.queue = CAST(%(queue)s AS text) AND waiting.rank = CAST(%(rank)s AS bigint)
      AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
      AND waiting.xmax = '0' AND NOT EXISTS (SELECT FROM {schema}.page WHERE page.book = 'flow')
      AND NOT EXISTS (SELECT FROM {schema}.paused_queue WHERE paused_queue.queue = CAST(%(queue)s AS text))
      {more}
    ORDER BY waiting.available_at, waiting.job_id LIMIT CAST(%(limit)s AS integer) FOR UPDATE SKIP LOCKED

-- name: free
-- If a lane's first job is in somebody's hands, there may be a crowd, and thousands of its jobs in somebody's hands. To find out whether a row
-- is locked takes four turns at the server's table of locks, where a crowd stands in line; that nobody ever touched a row shows by its xmax. So
-- only such rows are tried then.
({free} OR waiting.xmax = '0')

-- name: tried
-- What an aborted transaction has left does not look free. A claim that is `careful` tries all rows of the front, as many as it wants and a
-- hundred: what was left comes there while others pass over it.
(waiting.xmax = '0' OR {edge_at} IS NULL OR (waiting.available_at, waiting.job_id) <= ({edge_at}, {edge_id}))

-- name: claim_first
open AS MATERIALIZED (
  SELECT lane.*, first.free FROM lane CROSS JOIN LATERAL (
    SELECT waiting.xmax = '0' AS free FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
    ORDER BY waiting.available_at, waiting.job_id LIMIT 1
  ) AS first
),

-- name: claim_edge
LEFT JOIN LATERAL (
    SELECT waiting.available_at, waiting.job_id FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
    ORDER BY waiting.available_at, waiting.job_id OFFSET CAST(%(limit)s AS integer) + 100 LIMIT 1
  ) AS edge ON TRUE

-- name: claim_lone_edge
edge AS MATERIALIZED (
  SELECT waiting.available_at, waiting.job_id FROM {schema}.waiting
  WHERE waiting.queue = CAST(%(queue)s AS text) AND waiting.rank = CAST(%(rank)s AS bigint)
    AND (waiting.available_at, waiting.job_id) > ((SELECT available_at FROM first), (SELECT job_id FROM first))
  ORDER BY waiting.available_at, waiting.job_id OFFSET CAST(%(limit)s AS integer) + 100 LIMIT 1
),

-- name: alone
-- No other lane in the whole table.
AND NOT EXISTS (SELECT FROM {schema}.waiting AS other WHERE (other.queue, other.rank) < (CAST(%(queue)s AS text), CAST(%(rank)s AS bigint)))
    AND NOT EXISTS (SELECT FROM {schema}.waiting AS other WHERE (other.queue, other.rank) > (CAST(%(queue)s AS text), CAST(%(rank)s AS bigint)))

-- name: alone_in_queue
AND NOT EXISTS (SELECT FROM {schema}.waiting AS other WHERE other.queue = CAST(%(queue)s AS text) AND other.rank < CAST(%(rank)s AS bigint))
    AND NOT EXISTS (SELECT FROM {schema}.waiting AS other WHERE other.queue = CAST(%(queue)s AS text) AND other.rank > CAST(%(rank)s AS bigint))

-- name: empty
-- Whether there is nothing for this claim, neither in the lane that may be the only one nor elsewhere: then nobody need look any further. A
-- claim that completes others tells so; one that does not was called, and will find something: it does not pay for telling.
CAST(NOT EXISTS (SELECT FROM first) {more} AS integer),

-- name: gate
-- One of the few places at the gate (see `gate`), until the end of the transaction. To try does not wait.
gate AS MATERIALIZED (
  SELECT EXISTS (
    SELECT FROM generate_series(1, CAST(%(places)s AS integer)) AS place WHERE pg_try_advisory_xact_lock(CAST(%(gate)s AS integer), place)
  ) AS open
),

-- name: admitted
(SELECT open FROM gate)

-- name: turned_away
CASE WHEN (SELECT open FROM gate) THEN {empty} ELSE 2 END,

-- name: leased
-- What a claim got whose answer never came.
SELECT {running_columns} FROM {schema}.running AS place
CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job WHERE place.lease_id = %(lease_id)s

-- name: untouched
untouched.queue = job.queue AND untouched.rank = - CAST(job.priority AS bigint) AND untouched.available_at = job.due_at
        AND untouched.job_id = job.id AND (untouched.past).version IS NULL

-- name: claim_one
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
{ends}picked AS MATERIALIZED (
  SELECT waiting.ctid AS place, waiting.job_id FROM {schema}.waiting
  WHERE waiting.ctid = ANY (ARRAY(
      SELECT untouched.ctid FROM {schema}.job JOIN {schema}.waiting AS untouched ON {untouched} WHERE job.id = CAST(%(id)s AS uuid)
      UNION ALL
      SELECT touched.ctid FROM {schema}.waiting AS touched WHERE touched.job_id = CAST(%(id)s AS uuid) AND (touched.past).version IS NOT NULL
    )) AND waiting.job_id = CAST(%(id)s AS uuid) AND waiting.available_at <= (SELECT now FROM clock)
    AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
    AND {ended} AND split_part(waiting.queue, chr(31), 1) NOT IN (SELECT queue FROM {schema}.paused_queue)
  FOR UPDATE SKIP LOCKED
),
{taken}

-- name: taken
-- Rows of `waiting` are never updated, so a locked row stays where it was found. The envelopes are looked up one by one, whatever the planner
-- thinks of the tables' sizes. What a claim itself sets is not told, nor the order, which is the client's to restore: sorting wide rows, and
-- sending what is known, were a fifth of the work. What a job has been through comes as one text, and only if it has: one that only stands in a
-- lane is at its first version.
{within}taken AS (
  DELETE FROM {schema}.waiting WHERE ctid = ANY (ARRAY({picked})) {allowed} RETURNING *, (SELECT now FROM clock) AS now
),
held AS (
  INSERT INTO {schema}.running (job_id, queue, version, generation, attempt, crashes, available_at, token, lease_id, lease_owner,
    lease_expires_at, claimed_at, begun_at, started_at, updated_at, expires_at, failure_code, failure_message, failure_retryable, step_cursor,
    flow, lane)
  SELECT taken.job_id, {home}, coalesce((taken.past).version, 1) + 1, coalesce((taken.past).generation, 1),
    coalesce((taken.past).attempt, 0) + 1, coalesce((taken.past).crashes, 0), taken.available_at, coalesce((taken.past).token, 0) + 1,
    CAST(%(lease_id)s AS text), CAST(%(owner)s AS text), taken.now + CAST(%(lease)s AS bigint), taken.now, NULL,
    coalesce((taken.past).started_at, taken.now), taken.now, taken.expires_at, (taken.past).failure_code, (taken.past).failure_message,
    (taken.past).failure_retryable, coalesce((taken.past).step_cursor, 0), taken.flow, {lane}
  FROM taken
),
counted AS (
  INSERT INTO {schema}.tally (queue, state, jobs)
  SELECT gone.queue, each.state, each.jobs
  FROM (SELECT {home} AS queue, coalesce((past).state, 'queued') AS state, count(*) AS jobs FROM taken GROUP BY 1, 2) AS gone
  CROSS JOIN LATERAL (VALUES (gone.state, -gone.jobs), ('running', gone.jobs)) AS each (state, jobs)
)
SELECT {envelope}, taken.expires_at, job.steps_total, taken.available_at, taken.now, job.parent::text, job.code_version, taken.flow,
  CASE WHEN (taken.past).version > 1 OR (taken.past).step_cursor > 0 THEN CAST(json_build_array((taken.past).version, (taken.past).generation, (taken.past).attempt,
    (taken.past).crashes, (taken.past).token, (taken.past).started_at, (taken.past).failure_code, (taken.past).failure_message,
    (taken.past).failure_retryable, (taken.past).step_cursor) AS text) END, {told}{unwritten}
FROM {beside} taken CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = taken.job_id OFFSET 0) AS job {besides}

-- name: read
{read}

-- name: attempts
SELECT token, generation, attempt, owner, claimed_at, ended_at, outcome, code, message, traceback
FROM {schema}.attempt WHERE job_id = CAST(%(id)s AS uuid) ORDER BY token

-- name: steps
SELECT name, result, recorded_at FROM {schema}.step WHERE job_id = CAST(%(id)s AS uuid) ORDER BY position

-- name: counts
SELECT queue, state, sum(jobs)::bigint FROM {schema}.tally GROUP BY queue, state HAVING sum(jobs) <> 0

-- name: fold
WITH folded AS (DELETE FROM {schema}.tally RETURNING queue, state, jobs)
INSERT INTO {schema}.tally (queue, state, jobs) SELECT queue, state, sum(jobs) FROM folded GROUP BY queue, state HAVING sum(jobs) <> 0

-- name: expired_leases
SELECT {running_columns} FROM {schema}.running AS place
CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE place.lease_expires_at > 0 AND place.lease_expires_at > %(mark)s AND place.lease_expires_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
ORDER BY place.lease_expires_at LIMIT %(limit)s

-- name: overdue
SELECT {waiting_columns} FROM {schema}.waiting AS place
CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE place.expires_at IS NOT NULL AND place.expires_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
ORDER BY place.expires_at LIMIT %(limit)s

-- name: unsubmitted
SELECT {created_columns} FROM {schema}.created AS place
CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE job.created_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros()) - CAST(%(older_than)s AS bigint)
ORDER BY job.created_at LIMIT %(limit)s

-- name: purge
WITH over AS MATERIALIZED (
  SELECT job_id FROM {schema}.outcome WHERE purge_at > 0 AND purge_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
  ORDER BY purge_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM {schema}.outcome WHERE job_id = ANY (ARRAY(SELECT job_id FROM over)) RETURNING job_id, state, result),
jobs AS (DELETE FROM {schema}.job WHERE id = ANY (ARRAY(SELECT job_id FROM over)) RETURNING id, queue, tenant, key, payload),
keys AS (
  DELETE FROM {schema}.job_key USING jobs
  WHERE jobs.key IS NOT NULL AND job_key.tenant = jobs.tenant AND job_key.key = jobs.key AND job_key.job_id = jobs.id
),
attempts AS (DELETE FROM {schema}.attempt WHERE job_id = ANY (ARRAY(SELECT job_id FROM over))),
steps AS (DELETE FROM {schema}.step WHERE job_id = ANY (ARRAY(SELECT job_id FROM over)) RETURNING result),
signals AS (DELETE FROM {schema}.signal WHERE job_id = ANY (ARRAY(SELECT job_id FROM over))),
children AS (DELETE FROM {schema}.child WHERE job_id = ANY (ARRAY(SELECT job_id FROM over))),
counted AS (
  INSERT INTO {schema}.tally (queue, state, jobs)
  SELECT jobs.queue, gone.state, -count(*) FROM jobs JOIN gone ON gone.job_id = jobs.id GROUP BY 1, 2
),
pages AS (
  DELETE FROM {schema}.page WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.page WHERE expires_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
    ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
  )) RETURNING version
)
SELECT (SELECT count(*) FROM gone), ARRAY(
  SELECT payload FROM jobs WHERE left(payload, length(CAST(%(artifact)s AS text))) = CAST(%(artifact)s AS text)
  UNION ALL SELECT result FROM gone WHERE left(result, length(CAST(%(artifact)s AS text))) = CAST(%(artifact)s AS text)
  UNION ALL SELECT result FROM steps WHERE left(result, length(CAST(%(artifact)s AS text))) = CAST(%(artifact)s AS text)
), (SELECT count(*) FROM pages)

-- name: pause
INSERT INTO {schema}.paused_queue VALUES (%(queue)s) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM {schema}.paused_queue WHERE queue = %(queue)s

-- name: paused
SELECT queue FROM {schema}.paused_queue

-- name: enlist
INSERT INTO {schema}.worker VALUES (%(id)s, %(record)s, %(expires_at)s)
ON CONFLICT (id) DO UPDATE SET record = excluded.record, expires_at = excluded.expires_at RETURNING {schema}.micros()

-- name: dismiss
DELETE FROM {schema}.worker WHERE id = %(id)s OR expires_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())

-- name: workers
SELECT record FROM {schema}.worker WHERE expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()) ORDER BY id

-- name: lead
-- Tells whether the role is ours now, and how many workers there are: the more, the less often each need ask. Whoever sees that another has
-- it writes nothing: they would wait in line for the one row.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
taken AS (
  INSERT INTO {schema}.role AS held SELECT %(name)s, %(owner)s, clock.now + CAST(%(term)s AS bigint) FROM clock
  WHERE NOT EXISTS (SELECT FROM {schema}.role AS other WHERE other.name = %(name)s AND other.owner <> %(owner)s AND other.expires_at > clock.now)
  ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
  WHERE held.owner = excluded.owner OR held.expires_at <= (SELECT now FROM clock)
  RETURNING owner
)
SELECT EXISTS (SELECT FROM taken), (SELECT count(*) FROM {schema}.worker, clock WHERE worker.expires_at > clock.now)

-- name: outlook
-- The time, the queues that have a job to be claimed now, and when the first of the other lanes comes due.
WITH {lanes},
clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now)
SELECT (SELECT now FROM clock), array_agg(DISTINCT lane.queue) FILTER (WHERE first.available_at <= clock.now),
  min(first.available_at) FILTER (WHERE first.available_at > clock.now)
FROM lane CROSS JOIN clock CROSS JOIN LATERAL (
  SELECT waiting.available_at FROM {schema}.waiting
  WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
    AND (waiting.expires_at IS NULL OR waiting.expires_at > greatest(waiting.available_at, clock.now))
  ORDER BY waiting.available_at, waiting.job_id LIMIT 1
) AS first

-- name: due_since
WITH {lanes},
clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now)
SELECT split_part(lane.queue, chr(31), 1), min(first.available_at) FROM lane CROSS JOIN clock CROSS JOIN LATERAL (
  SELECT waiting.available_at FROM {schema}.waiting
  WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
    AND waiting.available_at <= clock.now AND (waiting.expires_at IS NULL OR waiting.expires_at > clock.now)
    AND CASE WHEN CAST(%(holds)s AS boolean) THEN (SELECT NOT {held} FROM {schema}.job WHERE job.id = waiting.job_id) ELSE TRUE END
  ORDER BY waiting.available_at, waiting.job_id LIMIT 1
) AS first
GROUP BY 1

-- name: notify
-- Nothing is lost with a notification, so its commit need not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, %(message)s)

-- name: recount
SELECT queue, state, count(*) FROM (
  SELECT job.queue, 'created' AS state FROM {schema}.created JOIN {schema}.job ON job.id = created.job_id
  UNION ALL SELECT split_part(queue, chr(31), 1), coalesce((past).state, 'queued') FROM {schema}.waiting
  UNION ALL SELECT queue, 'running' FROM {schema}.running
  UNION ALL SELECT job.queue, outcome.state FROM {schema}.outcome JOIN {schema}.job ON job.id = outcome.job_id
) AS every GROUP BY queue, state

-- name: orphan_keys
SELECT tenant, key FROM {schema}.job_key WHERE NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = job_key.job_id)

-- name: misplaced
-- Every job stands in exactly one place.
SELECT id::text, string_agg(place, ' and ') FROM (
  SELECT job.id, stands.place FROM {schema}.job LEFT JOIN (
    SELECT job_id, 'created' AS place FROM {schema}.created UNION ALL SELECT job_id, 'waiting' FROM {schema}.waiting
    UNION ALL SELECT job_id, 'running' FROM {schema}.running UNION ALL SELECT job_id, 'outcome' FROM {schema}.outcome
  ) AS stands ON stands.job_id = job.id
) AS every GROUP BY id HAVING count(place) <> 1
