-- Statements for what goes with workflows: steps and children that a job starts out with, credits, schedules and events.

-- name: insert_flowing
-- `insert` for jobs that have a flow, or steps, or a place in a lane, from the start. One that has steps waits as a touched one would,
-- because only those have a cursor; and so does one in a lane, because only so it is found there.
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
input AS MATERIALIZED (
  SELECT CAST(each.id AS uuid) AS id, each.payload, each.key, coalesce(each.run_at, clock.now + CAST(%(delay)s AS bigint)) AS available_at,
    clock.now, greatest(coalesce(each.run_at, clock.now + CAST(%(delay)s AS bigint)), clock.now) + CAST(%(expires_after)s AS bigint) AS expires_at
  FROM clock, unnest(string_to_array(CAST(%(ids)s AS text), ','), string_to_array(CAST(%(payloads)s AS text), chr(31)),
                     CAST(%(keys)s AS text[]), CAST(%(run_ats)s AS bigint[])) AS each (id, payload, key, run_at)
),
stored AS (
  INSERT INTO {schema}.job (id, kind, queue, tenant, "user", priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key,
                            created_at, steps_total, due_at, parent, code_version)
  SELECT input.id, CAST(%(kind)s AS text), CAST(%(queue)s AS text), CAST(%(tenant)s AS text), CAST(%(user)s AS text),
    CAST(%(priority)s AS integer), input.payload, CAST(%(retry)s AS text), CAST(%(max_attempts)s AS integer),
    CAST(%(crash_cap)s AS integer), CAST(%(trigger)s AS text), CAST(%(trace_id)s AS text), input.key, input.now,
    CAST(%(steps_total)s AS integer), input.available_at, CAST(CAST(%(parent)s AS text) AS uuid), CAST(%(code_version)s AS integer)
  FROM input
),
created AS (
  INSERT INTO {schema}.created (job_id, available_at, expires_at, flow, step_cursor)
  SELECT id, available_at, expires_at, CAST(%(flow)s AS text), CAST(%(step_cursor)s AS integer) FROM input
  WHERE CAST(%(state)s AS text) = 'created'
),
waiting AS (
  INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at, flow, past)
  SELECT coalesce(CAST(%(path)s AS text), CAST(%(queue)s AS text)), - CAST(%(priority)s AS bigint), available_at, id, expires_at,
    CAST(%(flow)s AS text), CASE WHEN CAST(%(step_cursor)s AS integer) > 0 OR CAST(%(path)s AS text) IS NOT NULL THEN
      ROW('queued', 1, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, now, NULL, NULL, NULL, CAST(%(step_cursor)s AS integer))::{schema}.past END
  FROM input WHERE CAST(%(state)s AS text) = 'queued'
),
counted AS (
  INSERT INTO {schema}.tally (queue, state, jobs)
  VALUES (CAST(%(queue)s AS text), CAST(%(state)s AS text), CAST(%(jobs)s AS bigint))
)
SELECT now FROM clock

-- name: insert_steps
-- They are recorded when the job is stored, before anything that it records itself.
INSERT INTO {schema}.step (job_id, position, name, result, recorded_at)
SELECT CAST(each.id AS uuid), each.position, each.name, each.result, (SELECT created_at FROM {schema}.job WHERE job.id = CAST(each.id AS uuid))
FROM unnest(CAST(%(ids)s AS text[]), CAST(%(positions)s AS integer[]), CAST(%(names)s AS text[]), CAST(%(results)s AS text[]))
  AS each (id, position, name, result)
ON CONFLICT (job_id, name) DO NOTHING
RETURNING 1

-- name: insert_children
INSERT INTO {schema}.child (job_id, parent)
SELECT CAST(each.id AS uuid), CAST(each.parent AS uuid) FROM unnest(CAST(%(ids)s AS text[]), CAST(%(parents)s AS text[])) AS each (id, parent)
RETURNING 1

-- name: seize_keys
-- Takes keys whose owners keep them no longer; `take_keys` has locked them.
INSERT INTO {schema}.job_key AS held (tenant, key, job_id, expires_at)
SELECT each.tenant, each.key, CAST(each.id AS uuid), coalesce(CAST(%(now)s AS bigint), {schema}.micros()) + each.ttl
FROM unnest(CAST(%(tenants)s AS text[]), CAST(%(keys)s AS text[]), CAST(%(ids)s AS text[]), CAST(%(ttls)s AS bigint[]))
  AS each (tenant, key, id, ttl)
ORDER BY each.tenant, each.key
ON CONFLICT (tenant, key) DO UPDATE SET job_id = excluded.job_id, expires_at = excluded.expires_at
RETURNING 1

-- name: known
SELECT id::text FROM {schema}.job WHERE id = ANY (CAST(%(ids)s AS uuid[]))

-- name: open_children
-- A child that is there and has no outcome is open. Each look-up stands by itself, so that no plan reads a table whole.
SELECT each.id::text FROM unnest(CAST(%(ids)s AS uuid[])) AS each (id)
CROSS JOIN LATERAL (
  SELECT child.job_id FROM {schema}.child
  WHERE child.parent = each.id AND (SELECT outcome.job_id FROM {schema}.outcome WHERE outcome.job_id = child.job_id) IS NULL LIMIT 1
) AS open

-- name: children
SELECT job_id::text FROM {schema}.child
WHERE parent = CAST(%(parent)s AS uuid) AND job_id < coalesce(CAST(%(before)s AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY parent DESC, job_id DESC LIMIT %(limit)s

-- name: signals
SELECT id, name, payload, sent_at FROM {schema}.signal WHERE job_id = CAST(%(id)s AS uuid) ORDER BY position

-- name: signals_known
SELECT each.job_id::text, each.id FROM unnest(CAST(%(ids)s AS uuid[]), CAST(%(names)s AS text[])) AS each (job_id, id)
WHERE (SELECT signal.position FROM {schema}.signal WHERE signal.job_id = each.job_id AND signal.id = each.id) IS NOT NULL

-- name: lock_accounts
-- In one order, so that nobody waits in a circle.
SELECT tenant, granted, reserved, spent FROM {schema}.credit_account WHERE tenant = ANY (CAST(%(tenants)s AS text[])) ORDER BY tenant FOR UPDATE

-- name: book
-- Changes accounts that are locked, and says why.
WITH changed AS (
  UPDATE {schema}.credit_account
  SET reserved = reserved + CAST(CAST(CAST(%(changes)s AS text) AS jsonb) -> tenant ->> 0 AS bigint),
    spent = spent + CAST(CAST(CAST(%(changes)s AS text) AS jsonb) -> tenant ->> 1 AS bigint),
    granted = granted + CAST(CAST(CAST(%(changes)s AS text) AS jsonb) -> tenant ->> 2 AS bigint)
  WHERE tenant = ANY (CAST(%(tenants)s AS text[]))
)
INSERT INTO {schema}.credit_entry (tenant, verb, job_id, generation, step, granted, reserved, spent, at)
SELECT each.tenant, each.verb, CAST(each.job_id AS uuid), each.generation, each.step, each.granted, each.reserved, each.spent,
  coalesce(CAST(%(now)s AS bigint), {schema}.micros())
FROM unnest(CAST(%(entries)s AS text[]), CAST(%(verbs)s AS text[]), CAST(%(job_ids)s AS text[]), CAST(%(generations)s AS integer[]),
            CAST(%(steps)s AS text[]), CAST(%(granted)s AS bigint[]), CAST(%(reserved)s AS bigint[]), CAST(%(spent)s AS bigint[]))
  WITH ORDINALITY AS each (tenant, verb, job_id, generation, step, granted, reserved, spent, nth)
ORDER BY each.nth
RETURNING 1

-- name: open_account
-- Locks it as well, if it is there.
INSERT INTO {schema}.credit_account AS held (tenant, granted, reserved, spent) VALUES (%(tenant)s, 0, 0, 0)
ON CONFLICT (tenant) DO UPDATE SET granted = held.granted
RETURNING tenant, granted, reserved, spent

-- name: granted
SELECT 1 FROM {schema}.credit_entry WHERE tenant = %(tenant)s AND step = %(id)s AND verb = 'grant'

-- name: grant
WITH changed AS (UPDATE {schema}.credit_account SET granted = granted + CAST(%(amount)s AS bigint) WHERE tenant = CAST(%(tenant)s AS text))
INSERT INTO {schema}.credit_entry (tenant, verb, generation, step, granted, reserved, spent, at)
VALUES (CAST(%(tenant)s AS text), 'grant', 0, %(id)s, %(amount)s, 0, 0, coalesce(CAST(%(now)s AS bigint), {schema}.micros()))

-- name: account
SELECT tenant, granted, reserved, spent FROM {schema}.credit_account WHERE tenant = %(tenant)s

-- name: accounts
SELECT tenant, granted, reserved, spent FROM {schema}.credit_account ORDER BY tenant

-- name: entries
SELECT tenant, verb, job_id::text, generation, step, granted, reserved, spent, at
FROM {schema}.credit_entry WHERE tenant = %(tenant)s ORDER BY tenant DESC, number DESC LIMIT %(limit)s

-- name: schedules
SELECT name, spec, next_at, last_at, paused, version FROM {schema}.schedule ORDER BY name

-- name: add_schedule
INSERT INTO {schema}.schedule (name, spec, next_at, last_at, paused, version)
VALUES (%(name)s, %(spec)s, %(next_at)s, %(last_at)s, %(paused)s, 1) ON CONFLICT (name) DO NOTHING RETURNING 1

-- name: change_schedule
UPDATE {schema}.schedule SET spec = %(spec)s, next_at = %(next_at)s, last_at = %(last_at)s, paused = %(paused)s, version = version + 1
WHERE name = %(name)s AND version = %(seen)s RETURNING 1

-- name: remove_schedule
DELETE FROM {schema}.schedule WHERE name = %(name)s RETURNING 1

-- name: events
SELECT position, id, job_id::text, name, body, at FROM {schema}.event WHERE position > %(after)s ORDER BY position LIMIT %(limit)s

-- name: outbox_filled
SELECT number FROM {schema}.outbox ORDER BY number LIMIT 1

-- name: lock_tail
SELECT position FROM {schema}.event_tail FOR UPDATE

-- name: gather
-- Sees what was committed before the tail was locked, because it is a statement of its own.
WITH gone AS (
  DELETE FROM {schema}.outbox
  WHERE number = ANY (ARRAY(SELECT number FROM {schema}.outbox ORDER BY number LIMIT CAST(%(limit)s AS integer)))
  RETURNING *
),
told AS (
  INSERT INTO {schema}.event (position, id, job_id, name, body, at)
  SELECT (SELECT position FROM {schema}.event_tail) + row_number() OVER (ORDER BY number), id, job_id, name, body, at FROM gone
)
UPDATE {schema}.event_tail SET position = position + (SELECT count(*) FROM gone)

-- name: trim
DELETE FROM {schema}.event WHERE position = ANY (ARRAY(
  SELECT position FROM {schema}.event
  WHERE position <= coalesce((SELECT min(sink.position) FROM {schema}.sink), (SELECT event_tail.position FROM {schema}.event_tail))
  ORDER BY position LIMIT CAST(%(limit)s AS integer)
))

-- name: sinks
SELECT name, position FROM {schema}.sink

-- name: reach
INSERT INTO {schema}.sink AS held (name, position) VALUES (%(name)s, %(position)s)
ON CONFLICT (name) DO UPDATE SET position = greatest(held.position, excluded.position)

-- name: remove_sink
DELETE FROM {schema}.sink WHERE name = %(name)s

-- name: wrong_reserves
-- Accounts whose reserved credits are not those of their jobs.
SELECT account.tenant, account.reserved, coalesce(of_jobs.reserved, 0)
FROM {schema}.credit_account AS account LEFT JOIN (
  SELECT job.tenant, sum(CAST(CAST(every.flow AS json) ->> 6 AS bigint)) AS reserved FROM (
    SELECT job_id, flow FROM {schema}.created WHERE flow IS NOT NULL UNION ALL SELECT job_id, flow FROM {schema}.waiting WHERE flow IS NOT NULL
    UNION ALL SELECT job_id, flow FROM {schema}.running WHERE flow IS NOT NULL
    UNION ALL SELECT job_id, flow FROM {schema}.outcome WHERE flow IS NOT NULL
  ) AS every JOIN {schema}.job ON job.id = every.job_id GROUP BY job.tenant
) AS of_jobs ON of_jobs.tenant = account.tenant
WHERE account.reserved <> coalesce(of_jobs.reserved, 0) ORDER BY account.tenant

-- name: wrong_accounts
-- Accounts that are not the sum of their entries.
SELECT account.tenant FROM {schema}.credit_account AS account LEFT JOIN (
  SELECT tenant, sum(granted) AS granted, sum(reserved) AS reserved, sum(spent) AS spent FROM {schema}.credit_entry GROUP BY tenant
) AS entered ON entered.tenant = account.tenant
WHERE (account.granted, account.reserved, account.spent)
  IS DISTINCT FROM (coalesce(entered.granted, 0), coalesce(entered.reserved, 0), coalesce(entered.spent, 0))
ORDER BY account.tenant
