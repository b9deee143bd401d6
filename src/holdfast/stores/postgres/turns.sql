-- Flow control: jobs that wait in lanes, whose turn it is, and what is in use of the limits. How paths are made is told in
-- `migrations/0006_flow.sql`.

-- name: orders
-- All that must be known before queues are looked at by rules: the pages of the rules, the queues that ever had lanes, and those of them
-- in which something stands that is not in the queue itself.
SELECT ARRAY(
  SELECT ARRAY[name, CAST(version AS text), body] FROM {schema}.page
  WHERE book = 'flow' AND coalesce(expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()), TRUE) ORDER BY book, name
), ARRAY(SELECT queue FROM {schema}.turn WHERE strpos(queue, chr(31)) = 0), ARRAY(
  SELECT turn.queue FROM {schema}.turn WHERE strpos(turn.queue, chr(31)) = 0 AND (
    SELECT waiting.queue FROM {schema}.waiting
    WHERE waiting.queue >= turn.queue || chr(31) AND waiting.queue < turn.queue || chr(32) ORDER BY waiting.queue LIMIT 1
  ) IS NOT NULL
)

-- name: waiting_queues
WITH {lanes}
SELECT queue FROM wanted

-- name: every_lane
-- Every queue and every lane of one, wherever jobs wait that are not known to be held back.
RECURSIVE name (queue) AS (
  (SELECT queue FROM {schema}.waiting ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT next.queue FROM name
  CROSS JOIN LATERAL (SELECT waiting.queue FROM {schema}.waiting WHERE waiting.queue > name.queue ORDER BY waiting.queue LIMIT 1) AS next
),
wanted (queue, most) AS MATERIALIZED (
  SELECT name.queue, 1 FROM name CROSS JOIN LATERAL (
    SELECT split_part(name.queue, chr(31), 2) AS lane, substr(split_part(name.queue, chr(31), 2), 2) AS tenant,
      split_part(name.queue, chr(31), 3) AS kind
  ) AS job
  WHERE split_part(name.queue, chr(31), 1) NOT IN (SELECT queue FROM {schema}.paused_queue) AND NOT (left(job.lane, 1) = 'z' AND {held})
),
{ranks}

-- name: add_turns
INSERT INTO {schema}.turn (queue) SELECT unnest(CAST(%(queues)s AS text[])) ORDER BY 1 ON CONFLICT DO NOTHING

-- name: turns
SELECT queue, lane, used, share, FALSE FROM {schema}.turn WHERE queue = ANY (CAST(%(queues)s AS text[])) ORDER BY queue

-- name: lock_turns
-- In one order, so that nobody waits in a circle. What comes after it sees all that earlier claims did. The last column tells whether
-- the queue is paused.
SELECT queue, lane, used, share, queue IN (SELECT queue FROM {schema}.paused_queue)
FROM {schema}.turn WHERE queue = ANY (CAST(%(queues)s AS text[])) ORDER BY queue FOR UPDATE

-- name: lock_turn
-- The same for one queue, the most common case.
SELECT queue, lane, used, share, queue IN (SELECT queue FROM {schema}.paused_queue) FROM {schema}.turn WHERE queue = %(queue)s FOR UPDATE

-- name: laned
-- Those of these queues of which something stands in a lane, or aside.
SELECT each.queue FROM unnest(CAST(%(queues)s AS text[])) AS each (queue)
WHERE EXISTS (SELECT FROM {schema}.waiting WHERE waiting.queue >= each.queue || chr(31) AND waiting.queue < each.queue || chr(32))

-- name: turned
UPDATE {schema}.turn SET lane = %(lane)s, used = %(used)s, share = %(share)s WHERE queue = %(queue)s

-- name: held
(job.tenant = ANY (CAST(%(tenants)s AS text[])) OR job.kind = ANY (CAST(%(kinds)s AS text[])))

-- name: aside
'z' || job.tenant || chr(31) || job.kind

-- name: moved
-- Rows leave one place of `waiting` for another; whatever was untouched counts as touched from now on, because only so it is found there.
gone AS (DELETE FROM {schema}.waiting WHERE ctid = ANY (ARRAY(SELECT place FROM found)) RETURNING *),
kept AS (
  INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at, flow, past)
  SELECT {path}, gone.rank, gone.available_at, gone.job_id, gone.expires_at, gone.flow,
    CASE WHEN (gone.past).version IS NOT NULL THEN gone.past ELSE
      ROW('queued', 1, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, job.created_at, NULL, NULL, NULL, 0)::{schema}.past END
  FROM gone CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = gone.job_id OFFSET 0) AS job
)
SELECT count(*), coalesce(CAST(%(now)s AS bigint), {schema}.micros()) FROM gone

-- name: line_up
-- Due jobs of a queue take their places in its lanes, so many at the most.
WITH {lanes},
found AS MATERIALIZED (
  SELECT due.place FROM lane CROSS JOIN LATERAL (
    SELECT waiting.ctid AS place FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank
      AND waiting.available_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
    ORDER BY waiting.available_at, waiting.job_id LIMIT lane.most FOR UPDATE SKIP LOCKED
  ) AS due LIMIT CAST(%(limit)s AS integer)
),
{moved}

-- name: line_up_path
job.queue || chr(31) || CASE WHEN {held} THEN {aside} WHEN CAST(%(shape)s AS text) = 't' THEN 't' || job.tenant
      ELSE 'k' || job.tenant || chr(31) || coalesce(CAST(gone.flow AS json) ->> CAST(%(group)s AS integer), '') END

-- name: step_out
-- Jobs go back to their queue from lanes of a shape that it no longer has, and those that were put aside without a reason that still holds.
WITH RECURSIVE aside (path) AS (
  (SELECT queue FROM {schema}.waiting WHERE queue >= CAST(%(aside)s AS text) AND queue < CAST(%(end)s AS text) ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT next.queue FROM aside CROSS JOIN LATERAL (
    SELECT waiting.queue FROM {schema}.waiting WHERE waiting.queue > aside.path AND waiting.queue < CAST(%(end)s AS text)
    ORDER BY waiting.queue LIMIT 1
  ) AS next
),
span (low, high) AS (
  SELECT * FROM unnest(CAST(%(lows)s AS text[]), CAST(%(highs)s AS text[]))
  UNION ALL
  SELECT aside.path, aside.path || chr(1) FROM aside CROSS JOIN LATERAL (
    SELECT split_part(substr(aside.path, length(CAST(%(aside)s AS text)) + 1), chr(31), 1) AS tenant, split_part(aside.path, chr(31), 3) AS kind
  ) AS job WHERE NOT {held}
),
found AS MATERIALIZED (
  SELECT out.place FROM span CROSS JOIN LATERAL (
    SELECT waiting.ctid AS place FROM {schema}.waiting WHERE waiting.queue >= span.low AND waiting.queue < span.high
    ORDER BY waiting.queue LIMIT CAST(%(limit)s AS integer) FOR UPDATE SKIP LOCKED
  ) AS out LIMIT CAST(%(limit)s AS integer)
),
{moved}

-- name: step_out_path
job.queue

-- name: put_aside
-- What waits at the front of queues and lanes and is of a paused tenant or kind: so many jobs of each are looked at.
WITH {lanes},
met AS MATERIALIZED (
  SELECT first.place FROM lane
  CROSS JOIN LATERAL (
    SELECT waiting.ctid AS place, waiting.job_id FROM {schema}.waiting
    WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND waiting.available_at <= CAST(%(now)s AS bigint)
    ORDER BY waiting.available_at, waiting.job_id LIMIT lane.most
  ) AS first
  CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = first.job_id OFFSET 0) AS job
  WHERE {held} LIMIT CAST(%(limit)s AS integer)
),
found AS MATERIALIZED (
  SELECT waiting.ctid AS place FROM {schema}.waiting WHERE waiting.ctid = ANY (ARRAY(SELECT place FROM met)) FOR UPDATE SKIP LOCKED
),
{moved}

-- name: put_aside_path
job.queue || chr(31) || {aside}

-- name: parties
, (SELECT ARRAY[job.tenant, job.kind] FROM {schema}.job WHERE job.id = best.job_id)

-- name: offers
-- The best jobs of queues without lanes: the first of each rank, since one that has waited too long may be of any.
WITH {named_lanes}
SELECT lane.queue, CAST(best.place AS text), CAST(best.job_id AS text), best.rank, best.available_at{more}
FROM lane CROSS JOIN LATERAL (
  SELECT waiting.ctid AS place, waiting.job_id, waiting.rank, waiting.available_at FROM {schema}.waiting
  WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
    AND waiting.available_at <= CAST(%(now)s AS bigint) AND (waiting.expires_at IS NULL OR waiting.expires_at > CAST(%(now)s AS bigint))
  ORDER BY waiting.available_at, waiting.job_id LIMIT lane.most
) AS best

-- name: offers_of_tenant
-- Among the first jobs of each lane (so many, behind its mark) the best of one tenant, locked, passing over what others hold; a few more are
-- looked up, should they hold some. And without a place, the last job of each lane that was looked at, if there may be more.
WITH {lanes},
mine AS MATERIALIZED (
  SELECT lane.queue, lane.rank, lane.most, ARRAY(
    SELECT next.place FROM (
      SELECT waiting.ctid AS place, waiting.job_id, waiting.available_at, waiting.expires_at FROM {schema}.waiting
      WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
        AND waiting.available_at <= CAST(%(now)s AS bigint)
      ORDER BY waiting.available_at, waiting.job_id LIMIT CAST(%(depth)s AS integer)
    ) AS next
    CROSS JOIN LATERAL (SELECT tenant, kind FROM {schema}.job WHERE job.id = next.job_id OFFSET 0) AS job
    WHERE job.tenant = CAST(%(tenant)s AS text) AND NOT {held} AND (next.expires_at IS NULL OR next.expires_at > CAST(%(now)s AS bigint))
    ORDER BY next.available_at, next.job_id LIMIT lane.most + 100
  ) AS places FROM lane
),
found AS MATERIALIZED (
  SELECT mine.queue, first.place, first.job_id, mine.rank, first.available_at FROM mine CROSS JOIN LATERAL (
    SELECT waiting.ctid AS place, waiting.job_id, waiting.available_at FROM {schema}.waiting WHERE waiting.ctid = ANY (mine.places)
    ORDER BY waiting.available_at, waiting.job_id LIMIT mine.most FOR UPDATE SKIP LOCKED
  ) AS first
)
SELECT queue, CAST(place AS text), CAST(job_id AS text), rank, available_at FROM found
UNION ALL
SELECT lane.queue, NULL, CAST(last.job_id AS text), lane.rank, last.available_at FROM lane CROSS JOIN LATERAL (
  SELECT waiting.job_id, waiting.available_at FROM {schema}.waiting
  WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND (waiting.available_at, waiting.job_id) > (lane.mark_at, lane.mark_id)
    AND waiting.available_at <= CAST(%(now)s AS bigint)
  ORDER BY waiting.available_at, waiting.job_id LIMIT 1 OFFSET CAST(%(depth)s AS integer) - 1
) AS last

-- name: ring
-- So many lanes between two paths, each with its first job, found by leaping from one to the next.
RECURSIVE ring (path, place, job_id, rank, available_at, goes, nth) AS (
  (SELECT queue, ctid, job_id, rank, available_at,
     available_at <= CAST(%(now)s AS bigint) AND (expires_at IS NULL OR expires_at > CAST(%(now)s AS bigint)), 1
   FROM {schema}.waiting WHERE queue >= CAST(%(first)s AS text) AND queue < CAST(%(until)s AS text)
   ORDER BY queue, rank, available_at, job_id LIMIT 1)
  UNION ALL
  SELECT next.*, ring.nth + 1 FROM ring CROSS JOIN LATERAL (
    SELECT waiting.queue, waiting.ctid, waiting.job_id, waiting.rank, waiting.available_at,
      waiting.available_at <= CAST(%(now)s AS bigint) AND (waiting.expires_at IS NULL OR waiting.expires_at > CAST(%(now)s AS bigint))
    FROM {schema}.waiting WHERE waiting.queue > ring.path AND waiting.queue < CAST(%(until)s AS text)
    ORDER BY waiting.queue, waiting.rank, waiting.available_at, waiting.job_id LIMIT 1
  ) AS next WHERE ring.nth < CAST(%(many)s AS integer)
)

-- name: round
-- So many lanes of a queue before they are asked for, once round from where its turn stands, and the best jobs of each; with the time, and
-- whether something is due that stands in no lane yet.
WITH RECURSIVE clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
begin (path) AS MATERIALIZED (
  SELECT greatest(CAST(%(low)s AS text), (SELECT queue || chr(31) || lane FROM {schema}.turn WHERE queue = CAST(%(queue)s AS text))) COLLATE "C"
),
ahead (path, nth) AS (
  (SELECT queue, 1 FROM {schema}.waiting WHERE queue >= (SELECT path FROM begin) AND queue < CAST(%(high)s AS text) ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT next.queue, ahead.nth + 1 FROM ahead CROSS JOIN LATERAL (
    SELECT waiting.queue FROM {schema}.waiting WHERE waiting.queue > ahead.path AND waiting.queue < CAST(%(high)s AS text)
    ORDER BY waiting.queue LIMIT 1
  ) AS next WHERE ahead.nth < CAST(%(many)s AS integer)
),
again (path, nth) AS (
  (SELECT queue, (SELECT count(*) FROM ahead) + 1 FROM {schema}.waiting
   WHERE queue >= CAST(%(low)s AS text) AND queue < least((SELECT path FROM begin), CAST(%(high)s AS text))
     AND (SELECT count(*) FROM ahead) < CAST(%(many)s AS integer) ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT next.queue, again.nth + 1 FROM again CROSS JOIN LATERAL (
    SELECT waiting.queue FROM {schema}.waiting
    WHERE waiting.queue > again.path AND waiting.queue < least((SELECT path FROM begin), CAST(%(high)s AS text)) ORDER BY waiting.queue LIMIT 1
  ) AS next WHERE again.nth < CAST(%(many)s AS integer)
),
stray (rank, available_at) AS (
  (SELECT rank, available_at FROM {schema}.waiting WHERE queue = CAST(%(queue)s AS text) ORDER BY queue, rank, available_at LIMIT 1)
  UNION ALL
  SELECT next.* FROM stray CROSS JOIN LATERAL (
    SELECT waiting.rank, waiting.available_at FROM {schema}.waiting WHERE waiting.queue = CAST(%(queue)s AS text) AND waiting.rank > stray.rank
    ORDER BY waiting.queue, waiting.rank, waiting.available_at LIMIT 1
  ) AS next WHERE stray.available_at > (SELECT now FROM clock)
)
SELECT clock.now, (SELECT coalesce(bool_or(available_at <= clock.now), FALSE) FROM stray), lane.path, best.*
FROM clock LEFT JOIN (SELECT path FROM ahead UNION ALL SELECT path FROM again) AS lane ON TRUE
LEFT JOIN LATERAL (
  SELECT string_agg(CAST(first.place AS text), ';'), string_agg(CAST(first.job_id AS text), ';'){more} FROM (
    SELECT waiting.ctid AS place, waiting.job_id, waiting.rank, waiting.available_at FROM {schema}.waiting
    WHERE waiting.queue = lane.path AND waiting.available_at <= clock.now
      AND (waiting.expires_at IS NULL OR waiting.expires_at > clock.now)
    ORDER BY waiting.queue, waiting.rank, waiting.available_at, waiting.job_id LIMIT CAST(%(each)s AS integer)
  ) AS first
) AS best ON TRUE

-- name: orders_too
, string_agg(first.rank || ' ' || first.available_at, ';')

-- name: lanes_of
-- The lanes, with the best jobs of each. If one is enough and the first may go, no more is looked at.
WITH {ring}
SELECT best.path, CAST(best.place AS text), CAST(best.job_id AS text), best.rank, best.available_at{more} FROM (
  SELECT path, place, job_id, rank, available_at FROM ring WHERE goes AND CAST(%(each)s AS integer) = 1
  UNION ALL
  SELECT ring.path, first.place, first.job_id, first.rank, first.available_at FROM ring LEFT JOIN LATERAL (
    SELECT waiting.ctid AS place, waiting.job_id, waiting.rank, waiting.available_at FROM {schema}.waiting
    WHERE waiting.queue = ring.path AND waiting.available_at <= CAST(%(now)s AS bigint)
      AND (waiting.expires_at IS NULL OR waiting.expires_at > CAST(%(now)s AS bigint))
    ORDER BY waiting.queue, waiting.rank, waiting.available_at, waiting.job_id LIMIT CAST(%(each)s AS integer)
  ) AS first ON TRUE WHERE NOT (goes AND CAST(%(each)s AS integer) = 1)
) AS best

-- name: aging_lanes_of
-- The same, with the first jobs of each rank.
WITH {ring},
lane (queue, rank) AS (
  SELECT ring.path, first.rank FROM ring
  CROSS JOIN LATERAL (SELECT rank FROM {schema}.waiting WHERE waiting.queue = ring.path ORDER BY queue, rank LIMIT 1) AS first
  UNION ALL
  SELECT lane.queue, next.rank FROM lane CROSS JOIN LATERAL (
    SELECT waiting.rank FROM {schema}.waiting WHERE waiting.queue = lane.queue AND waiting.rank > lane.rank ORDER BY queue, rank LIMIT 1
  ) AS next
)
SELECT lane.queue, CAST(best.place AS text), CAST(best.job_id AS text), best.rank, best.available_at{more}
FROM lane LEFT JOIN LATERAL (
  SELECT waiting.ctid AS place, waiting.job_id, waiting.rank, waiting.available_at FROM {schema}.waiting
  WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND waiting.available_at <= CAST(%(now)s AS bigint)
    AND (waiting.expires_at IS NULL OR waiting.expires_at > CAST(%(now)s AS bigint))
  ORDER BY waiting.available_at, waiting.job_id LIMIT CAST(%(each)s AS integer)
) AS best ON TRUE

-- name: take
-- Exactly these, if they still stand where they were seen. They travel as one text each, as in `insert`, and are read but once; the ids are
-- in a hash table, as in `complete`.
WITH clock AS MATERIALIZED (SELECT CAST(%(now)s AS bigint) AS now),
picked AS MATERIALIZED (
  SELECT waiting.ctid AS place, waiting.job_id FROM {schema}.waiting
  WHERE waiting.ctid = ANY (ARRAY(SELECT CAST(each AS tid) FROM unnest(string_to_array(CAST(%(places)s AS text), ';')) AS each))
    AND CASE WHEN waiting.job_id IN (SELECT CAST(each AS uuid) FROM unnest(string_to_array(CAST(%(ids)s AS text), ';')) AS each)
      THEN true ELSE false END
    AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
  FOR UPDATE SKIP LOCKED
),
{more}
{taken}

-- name: turned_too
turned AS ({turned}),

-- name: one_home
-- The same, of jobs of one queue.
CAST(%(home)s AS text)

-- name: home
-- The queue of a job that may wait in a lane.
split_part(taken.queue, chr(31), 1)

-- name: counted_lane
-- What a job that is claimed under a rule is counted by. Its lane, if it stood in one, begins with the tenant.
{home} || chr(31) || CASE WHEN split_part(taken.queue, chr(31), 2) <> '' THEN substr(split_part(taken.queue, chr(31), 2), 2)
        ELSE (SELECT job.tenant FROM {schema}.job WHERE job.id = taken.job_id) END || chr(31)
      || coalesce(CAST(taken.flow AS json) ->> CAST(%(group)s AS integer), '')

-- name: comes_due
-- When the next job of these queues comes due that is not of a paused tenant or kind.
WITH {named_lanes}
SELECT min(first.available_at) FROM lane CROSS JOIN LATERAL (
  SELECT waiting.available_at FROM {schema}.waiting
  WHERE waiting.queue = lane.queue AND waiting.rank = lane.rank AND waiting.available_at > CAST(%(now)s AS bigint)
    AND (waiting.expires_at IS NULL OR waiting.expires_at > waiting.available_at) {more}
  ORDER BY waiting.available_at, waiting.job_id LIMIT 1
) AS first

-- name: not_held
AND (SELECT NOT {held} FROM {schema}.job WHERE job.id = waiting.job_id)

-- name: in_use
-- The time, the buckets of these subjects, and how many run of what is counted between these bounds.
SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()), (
  SELECT json_agg(json_build_array(each.queue, each.per, each.subject, bucket.full_at))
  FROM unnest(CAST(%(queues)s AS text[]), CAST(%(pers)s AS text[]), CAST(%(subjects)s AS text[])) AS each (queue, per, subject)
  CROSS JOIN LATERAL (
    SELECT full_at FROM {schema}.bucket WHERE bucket.queue = each.queue AND bucket.per = each.per AND bucket.subject = each.subject
  ) AS bucket
), (
  SELECT json_object_agg(counted.lane, counted.jobs) FROM (
    SELECT held.lane, count(*) AS jobs FROM unnest(CAST(%(lows)s AS text[]), CAST(%(highs)s AS text[])) AS bound (low, high)
    CROSS JOIN LATERAL (
      SELECT running.lane FROM {schema}.running WHERE running.lane IS NOT NULL AND running.lane >= bound.low AND running.lane < bound.high
    ) AS held GROUP BY held.lane
  ) AS counted
)

-- name: uncounted
-- Jobs that were claimed before a rule was known, and run.
SELECT CAST(place.job_id AS text),
  place.queue || chr(31) || job.tenant || chr(31) || coalesce(CAST(place.flow AS json) ->> CAST(%(group)s AS integer), '')
FROM {schema}.running AS place CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE place.lane IS NULL AND (CAST(%(everywhere)s AS boolean) OR place.queue = ANY (CAST(%(queues)s AS text[])))

-- name: count_in
-- They are counted by the index from now on; what somebody is changing at this moment, the next time.
UPDATE {schema}.running SET lane = CAST(%(lanes)s AS jsonb) ->> CAST(job_id AS text)
WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.running WHERE job_id = ANY (CAST(%(ids)s AS uuid[])) FOR UPDATE SKIP LOCKED))
  AND job_id = ANY (CAST(%(ids)s AS uuid[]))

-- name: draw
INSERT INTO {schema}.bucket (queue, per, subject, full_at)
SELECT * FROM unnest(CAST(%(queues)s AS text[]), CAST(%(pers)s AS text[]), CAST(%(subjects)s AS text[]), CAST(%(levels)s AS bigint[]))
ON CONFLICT (queue, per, subject) DO UPDATE SET full_at = excluded.full_at

-- name: full_buckets
DELETE FROM {schema}.bucket WHERE full_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())

-- name: standing
SELECT job.tenant, CAST(place.flow AS json) ->> CAST(%(group)s AS integer), count(*)
FROM {schema}.running AS place CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE %(queue)s = '*' OR place.queue = %(queue)s GROUP BY 1, 2

-- name: buckets
SELECT per, subject, full_at FROM {schema}.bucket
WHERE queue = %(queue)s AND full_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros())

-- name: running_jobs
SELECT {running_columns} FROM {schema}.running AS place
CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job WHERE place.queue = %(queue)s

-- name: due_jobs
-- Due jobs that stand between two paths, so many at the most.
SELECT {waiting_columns} FROM {schema}.waiting AS place
CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE place.queue >= CAST(%(low)s AS text) AND place.queue < CAST(%(high)s AS text)
  AND place.available_at <= CAST(%(now)s AS bigint) AND (place.expires_at IS NULL OR place.expires_at > CAST(%(now)s AS bigint))
  AND NOT {held}
ORDER BY place.queue LIMIT %(limit)s
