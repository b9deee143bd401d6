-- Claims by rules in one statement: by order while the limits of a queue are far, and once round its lanes.
--
-- `turn.running` is never less than what runs of a queue: it is set by whoever counts (`reckoned`), under the lock of the row, and every claim
-- adds to it. Whoever finds the row changed by another who has just committed compares again with what that one wrote. So no claims pass a
-- limit together, although none of them has counted.

-- name: reckoned
UPDATE {schema}.turn SET running = each.jobs FROM unnest(CAST(%(queues)s AS text[]), CAST(%(jobs)s AS bigint[])) AS each (queue, jobs)
WHERE turn.queue = each.queue

-- name: within
-- Only while so few run that every job that is claimed may start (`domain.gates.Spare`), and nothing stands in a lane, where it could be better.
within AS (
  UPDATE {schema}.turn SET running = turn.running + (SELECT count(*) FROM picked)
  WHERE turn.queue = CAST(%(home)s AS text) AND (SELECT count(*) FROM picked) > 0
    AND (SELECT waiting.queue FROM {schema}.waiting WHERE waiting.queue >= CAST(%(home)s AS text) || chr(31)
      AND waiting.queue < CAST(%(home)s AS text) || chr(32) ORDER BY waiting.queue LIMIT 1) IS NULL
    AND CASE WHEN CAST(%(running)s AS bigint) IS NULL THEN TRUE ELSE turn.running <= CAST(%(running)s AS bigint) END
  RETURNING turn.queue
),

-- name: allowed
AND (SELECT count(*) FROM within) > 0

-- name: drawn
-- And while the bucket is so full. Whoever draws has the row of the turn, so that nobody has read the bucket and writes it later.
drawn AS (
  INSERT INTO {schema}.bucket (queue, per, subject, full_at)
  SELECT within.queue, 'queue', '', (SELECT now FROM clock) + (SELECT count(*) FROM picked) * CAST(%(interval)s AS bigint) FROM within
  ON CONFLICT (queue, per, subject) DO UPDATE
  SET full_at = greatest(bucket.full_at, (SELECT now FROM clock)) + (SELECT count(*) FROM picked) * CAST(%(interval)s AS bigint)
  WHERE bucket.full_at <= (SELECT now FROM clock) + CAST(%(full_in)s AS bigint)
  RETURNING bucket.queue
),

-- name: allowed_by_drawn
AND (SELECT count(*) FROM drawn) > 0

-- name: unnamed_lane
-- What a job is counted by that was claimed while limits were far: by its queue. Whose it is is looked up when they are not (`unnamed`); chr(1)
-- stands for the tenant, which no name contains.
CAST(%(home)s AS text) || chr(31) || chr(1) || chr(31)

-- name: unnamed
SELECT CAST(place.job_id AS text),
  place.queue || chr(31) || job.tenant || chr(31) || coalesce(CAST(place.flow AS json) ->> CAST(%(group)s AS integer), '')
FROM {schema}.running AS place CROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job
WHERE place.lane IS NOT NULL AND place.lane = ANY (CAST(%(lanes)s AS text[]))

-- name: claim_round
-- One claim's way round the lanes of a queue, as `domain.ring` goes it where all have the same weight and no gate is in the way: from where the
-- turn stands, so many jobs of each lane (`quota`), and, if that is not enough, in further rounds (`anew` of each) until it is. So many lanes are
-- looked at, and so many jobs of each: if that does not tell for certain who goes, or if jobs stand in no lane yet, nothing is taken. Nor is it
-- if somebody else has moved the turn meanwhile. Each lane is read from its first job that is there: what was taken before it stays in the index
-- until vacuum comes, and is passed over once.
WITH RECURSIVE clock AS MATERIALIZED (SELECT coalesce(CAST(%(now)s AS bigint), {schema}.micros()) AS now),
{ends}stray (rank, available_at) AS (
  (SELECT rank, available_at FROM {schema}.waiting WHERE queue = CAST(%(home)s AS text) AND {ended} ORDER BY queue, rank, available_at LIMIT 1)
  UNION ALL
  SELECT next.* FROM stray CROSS JOIN LATERAL (
    SELECT waiting.rank, waiting.available_at FROM {schema}.waiting WHERE waiting.queue = CAST(%(home)s AS text) AND waiting.rank > stray.rank
    ORDER BY waiting.queue, waiting.rank, waiting.available_at LIMIT 1
  ) AS next WHERE stray.available_at > (SELECT now FROM clock)
),
begun AS MATERIALIZED (
  SELECT turn.lane, turn.used, turn.share, (CAST(%(home)s AS text) || chr(31) || turn.lane) COLLATE "C" AS path
  FROM {schema}.turn WHERE turn.queue = CAST(%(home)s AS text) AND (SELECT coalesce(bool_or(available_at <= clock.now), FALSE) FROM stray, clock) = FALSE
    AND NOT EXISTS (SELECT FROM {schema}.paused_queue WHERE paused_queue.queue = CAST(%(home)s AS text))
),
way (begin, share, used) AS MATERIALIZED (
  SELECT CASE WHEN NOT fits THEN CAST(%(low)s AS text) WHEN used < share THEN path ELSE path || chr(1) END COLLATE "C",
    CASE WHEN fits THEN share ELSE CAST(%(anew)s AS integer) END, CASE WHEN fits AND used < share THEN used ELSE 0 END
  FROM (SELECT *, path >= CAST(%(low)s AS text) AND path < CAST(%(high)s AS text) AS fits FROM begun) AS stood
),
ahead (nth, path, rank, at, id) AS (
  (SELECT CAST(1 AS bigint), queue, rank, available_at, job_id FROM {schema}.waiting
   WHERE queue >= (SELECT begin FROM way) AND queue < CAST(%(high)s AS text) ORDER BY queue, rank, available_at, job_id LIMIT 1)
  UNION ALL
  SELECT ahead.nth + 1, next.* FROM ahead CROSS JOIN LATERAL (
    SELECT waiting.queue, waiting.rank, waiting.available_at, waiting.job_id FROM {schema}.waiting
    WHERE waiting.queue > ahead.path AND waiting.queue < CAST(%(high)s AS text)
    ORDER BY waiting.queue, waiting.rank, waiting.available_at, waiting.job_id LIMIT 1
  ) AS next WHERE ahead.nth < CAST(%(many)s AS integer)
),
again (nth, path, rank, at, id) AS (
  (SELECT (SELECT count(*) FROM ahead) + 1, queue, rank, available_at, job_id FROM {schema}.waiting
   WHERE queue >= CAST(%(low)s AS text) AND queue < (SELECT begin FROM way)
     AND (SELECT count(*) FROM ahead) < CAST(%(many)s AS integer) ORDER BY queue, rank, available_at, job_id LIMIT 1)
  UNION ALL
  SELECT again.nth + 1, next.* FROM again CROSS JOIN LATERAL (
    SELECT waiting.queue, waiting.rank, waiting.available_at, waiting.job_id FROM {schema}.waiting
    WHERE waiting.queue > again.path AND waiting.queue < (SELECT begin FROM way)
    ORDER BY waiting.queue, waiting.rank, waiting.available_at, waiting.job_id LIMIT 1
  ) AS next WHERE again.nth < CAST(%(many)s AS integer)
),
lane (nth, path, rank, at, id, share, quota) AS MATERIALIZED (
  SELECT ahead.*, way.share, way.share - CASE WHEN ahead.path = way.begin THEN way.used ELSE 0 END FROM ahead, way
  UNION ALL
  SELECT again.*, CAST(%(anew)s AS integer), CAST(%(anew)s AS integer) FROM again
),
offer AS MATERIALIZED (
  SELECT lane.nth, lane.path, lane.share, lane.quota, greatest(lane.quota, CAST(%(each)s AS integer)) AS depth, best.place, best.n,
    CASE WHEN best.n <= lane.quota THEN 0 ELSE 1 + (best.n - lane.quota - 1) / CAST(%(anew)s AS integer) END AS round
  FROM lane CROSS JOIN LATERAL (
    SELECT waiting.ctid AS place, row_number() OVER (ORDER BY waiting.rank, waiting.available_at, waiting.job_id) AS n FROM {schema}.waiting
    WHERE waiting.queue = lane.path AND (waiting.rank, waiting.available_at, waiting.job_id) >= (lane.rank, lane.at, lane.id)
      AND waiting.available_at <= (SELECT now FROM clock) AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))
    ORDER BY waiting.rank, waiting.available_at, waiting.job_id LIMIT greatest(lane.quota, CAST(%(each)s AS integer))
  ) AS best
),
chosen AS MATERIALIZED (SELECT * FROM offer ORDER BY round, nth, n LIMIT CAST(%(limit)s AS integer)),
last AS MATERIALIZED (SELECT * FROM chosen ORDER BY round DESC, nth DESC, n DESC LIMIT 1),
verdict AS MATERIALIZED (
  SELECT CASE WHEN (SELECT count(*) FROM chosen) < CAST(%(limit)s AS integer)
    THEN (SELECT count(*) FROM lane) < CAST(%(many)s AS integer) AND NOT EXISTS (SELECT FROM offer WHERE n = depth)
    ELSE ((SELECT round FROM last) = 0 OR (SELECT count(*) FROM lane) < CAST(%(many)s AS integer)) AND NOT EXISTS (
      SELECT FROM offer, last
      WHERE offer.n = offer.depth AND (1 + (offer.n - offer.quota) / CAST(%(anew)s AS integer), offer.nth, offer.n + 1) < (last.round, last.nth, last.n)
    ) END AS certain
),
within AS (
  UPDATE {schema}.turn SET running = turn.running + (SELECT count(*) FROM chosen),
    lane = (SELECT substr(path, length(CAST(%(home)s AS text)) + 2) FROM last),
    used = (SELECT CASE WHEN round = 0 THEN share - quota + n ELSE (n - quota - 1) % CAST(%(anew)s AS integer) + 1 END FROM last),
    share = (SELECT CASE WHEN round = 0 THEN share ELSE CAST(%(anew)s AS integer) END FROM last)
  WHERE turn.queue = CAST(%(home)s AS text) AND (SELECT certain FROM verdict) AND (SELECT count(*) FROM chosen) > 0
    AND turn.lane = (SELECT lane FROM begun) AND turn.used = (SELECT used FROM begun) AND turn.share = (SELECT share FROM begun)
    AND CASE WHEN CAST(%(running)s AS bigint) IS NULL THEN TRUE ELSE turn.running <= CAST(%(running)s AS bigint) END
  RETURNING turn.queue
),
picked AS MATERIALIZED (
  SELECT waiting.ctid AS place FROM {schema}.waiting
  WHERE waiting.ctid = ANY (ARRAY(SELECT place FROM chosen WHERE (SELECT count(*) FROM within) > 0)) FOR UPDATE SKIP LOCKED
),
{taken}

-- name: stood
-- Where the turn stood, how many were to go, and whether that was certain.
(SELECT concat_ws(' ', begun.used, begun.share, (SELECT count(*) FROM chosen), CAST(verdict.certain AS integer), begun.lane) FROM begun, verdict),
