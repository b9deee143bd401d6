-- Flow control. `ready` = 2: in its lane; 3: put aside.

-- name: orders
-- All that a claim must know before it looks: which rules hold, and which queues are paused.
SELECT stamp, laned, (SELECT json_group_array(queue) FROM paused_queue) FROM ruling

-- name: stamp
SELECT stamp FROM ruling

-- name: rules
SELECT name, body FROM page WHERE book = 'flow'

-- name: relaned
UPDATE ruling SET laned = stamp

-- name: lane_t
-- The name of a job's lane in a queue whose lanes are tenants (see `limits.Plan.lane`).
't' || tenant

-- name: lane_k
-- The same where they are tenants' keys.
'k' || tenant || char(31) || coalesce(flow ->> {group}, '')

-- name: lane_running
UPDATE job SET lane = {lane} WHERE lease_expires_at IS NOT NULL AND queue = ?1

-- name: lane_one
UPDATE job SET lane = {lane} WHERE seq = ?1

-- name: lines_up
-- Whether anything has to: most claims find nothing, and looking costs less than an update of nothing.
SELECT EXISTS (SELECT 1 FROM job WHERE ready = 1 AND queue = ?1)
  OR EXISTS (SELECT 1 FROM job WHERE ready = 0 AND queue = ?1 AND available_at <= ?2)

-- name: line_up
-- Due jobs take their places in the lanes. Bounded like `promote`.
UPDATE job SET ready = 2, lane = {lane}
WHERE seq IN (
  SELECT * FROM (SELECT seq FROM job WHERE ready = 1 AND queue = ?1 ORDER BY priority DESC, available_at, seq LIMIT ?3)
  UNION ALL
  SELECT * FROM (SELECT seq FROM job WHERE ready = 0 AND queue = ?1 AND available_at <= ?2 ORDER BY available_at LIMIT ?3)
)

-- name: step_out
-- Jobs leave lanes that are not of the shape the queue has now; ?2 and ?3 are where those begin and end.
UPDATE job SET ready = 1
WHERE seq IN (SELECT seq FROM job WHERE ready = 2 AND queue = ?1 AND NOT (lane >= ?2 AND lane < ?3) LIMIT ?4)

-- name: aside
-- The tenants and kinds of the jobs that were put aside, from one to the next.
WITH RECURSIVE pair(names) AS (
  SELECT * FROM (SELECT json_array(tenant, kind) FROM job WHERE ready = 3 AND queue = ?1 ORDER BY tenant, kind LIMIT 1)
  UNION ALL
  SELECT (SELECT json_array(tenant, kind) FROM job WHERE ready = 3 AND queue = ?1 AND (tenant, kind) > (names ->> 0, names ->> 1)
          ORDER BY tenant, kind LIMIT 1)
  FROM pair WHERE names IS NOT NULL
)
SELECT names ->> 0, names ->> 1 FROM pair WHERE names IS NOT NULL

-- name: put_back
UPDATE job SET ready = 1
WHERE seq IN (SELECT seq FROM job WHERE ready = 3 AND queue = ?1 AND tenant = ?2 AND kind = ?3 LIMIT ?4)

-- name: put_aside
UPDATE job SET ready = 3 WHERE seq IN (SELECT value FROM json_each(?1))

-- name: offers
-- The best jobs of a queue without lanes.
SELECT json_group_array(json_array('', seq, priority, available_at, state, tenant, kind)) FROM (
  SELECT seq, priority, available_at, state, tenant, kind FROM job
  WHERE ready = 1 AND queue = ?1 AND (expires_at IS NULL OR expires_at > ?2)
  ORDER BY priority DESC, available_at, seq LIMIT ?3
)

-- name: aged_offers
-- Those that have waited since ?4, oldest first: the heads of each priority.
WITH RECURSIVE head(priority) AS (
  SELECT * FROM (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 ORDER BY priority DESC LIMIT 1)
  UNION ALL
  SELECT (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 AND priority < head.priority ORDER BY priority DESC LIMIT 1)
  FROM head WHERE priority IS NOT NULL
)
SELECT json_group_array(json_array('', seq, priority, available_at, state, tenant, kind)) FROM (
  SELECT job.seq, job.priority, available_at, state, tenant, kind FROM head JOIN job ON job.seq IN (
    SELECT seq FROM job AS due
    WHERE ready = 1 AND queue = ?1 AND due.priority = head.priority AND available_at <= ?4 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY available_at, seq LIMIT ?3
  ) ORDER BY available_at, seq LIMIT ?3
)

-- name: offers_of_tenant
-- Among the next ?6 due jobs of a queue without lanes, behind the one with priority ?7, due time ?8 and seq ?9: the best of the tenant ?4 that
-- are not of the kinds ?5. And the place of the last one looked at, if there are as many.
SELECT json_group_array(json_array('', seq, priority, available_at, state, tenant, kind)), (
  SELECT json_array(-priority, available_at, seq) FROM (
    SELECT * FROM (SELECT priority, available_at, seq FROM job
                   WHERE ready = 1 AND queue = ?1 AND priority = ?7 AND (available_at, seq) > (?8, ?9) ORDER BY available_at, seq LIMIT ?6)
    UNION ALL
    SELECT * FROM (SELECT priority, available_at, seq FROM job
                   WHERE ready = 1 AND queue = ?1 AND priority < ?7 ORDER BY priority DESC, available_at, seq LIMIT ?6)
  ) LIMIT 1 OFFSET ?6 - 1
) FROM (
  SELECT * FROM (
    SELECT * FROM (SELECT seq, priority, available_at, state, tenant, kind, expires_at FROM job
                   WHERE ready = 1 AND queue = ?1 AND priority = ?7 AND (available_at, seq) > (?8, ?9) ORDER BY available_at, seq LIMIT ?6)
    UNION ALL
    SELECT * FROM (SELECT seq, priority, available_at, state, tenant, kind, expires_at FROM job
                   WHERE ready = 1 AND queue = ?1 AND priority < ?7 ORDER BY priority DESC, available_at, seq LIMIT ?6)
    LIMIT ?6
  ) WHERE tenant = ?4 AND kind NOT IN (SELECT value FROM json_each(?5)) AND (expires_at IS NULL OR expires_at > ?2) LIMIT ?3
)

-- name: aged_offers_of_tenant
-- Of the tenant's, those that have waited since ?7: among the first ?6 of each priority.
WITH RECURSIVE head(priority) AS (
  SELECT * FROM (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 ORDER BY priority DESC LIMIT 1)
  UNION ALL
  SELECT (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 AND priority < head.priority ORDER BY priority DESC LIMIT 1)
  FROM head WHERE priority IS NOT NULL
)
SELECT json_group_array(json_array('', seq, priority, available_at, state, tenant, kind)) FROM (
  SELECT job.seq, job.priority, available_at, state, tenant, kind FROM head JOIN job ON job.seq IN (
    SELECT seq FROM (
      SELECT seq, available_at, tenant, kind, expires_at FROM job AS due
      WHERE ready = 1 AND queue = ?1 AND due.priority = head.priority AND available_at <= ?7 ORDER BY available_at, seq LIMIT ?6
    ) WHERE tenant = ?4 AND kind NOT IN (SELECT value FROM json_each(?5)) AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY available_at, seq LIMIT ?3
  ) ORDER BY available_at, seq LIMIT ?3
)

-- name: any_lane
SELECT EXISTS (SELECT 1 FROM job WHERE ready = 2 AND queue = ?1 AND lane >= ?2 AND lane < ?3)

-- name: walk
-- So many lanes (?4) from ?5 on and before ?6, found from one to the next.
RECURSIVE ring(lane, place) AS (
  SELECT * FROM (SELECT lane, 1 FROM job WHERE ready = 2 AND queue = ?1 AND lane >= ?5 AND lane < ?6 ORDER BY lane LIMIT 1)
  UNION ALL
  SELECT (SELECT job.lane FROM job WHERE ready = 2 AND queue = ?1 AND job.lane > ring.lane AND job.lane < ?6 ORDER BY job.lane LIMIT 1),
    place + 1
  FROM ring WHERE lane IS NOT NULL AND place < ?4
)

-- name: tellings
-- The best jobs of a lane (?3), as `claimed` will tell of them; behind that the lane, and twice the seq, and one more for a job that is retried.
SELECT group_concat(told) FROM (
  SELECT json_array({next_columns}, lane, 2 * seq + (state = 'retrying')) AS told FROM job
  WHERE ready = 2 AND queue = ?1 AND lane = ring.lane AND (expires_at IS NULL OR expires_at > ?2)
  ORDER BY priority DESC, available_at, seq LIMIT ?3
)

-- name: stands
-- `lanes` where nothing of a job decides but its place: an object of lanes, each with its jobs.
WITH {walk}
SELECT '{' || coalesce(group_concat(json_quote(lane) || ':[' || coalesce(({tellings}), '') || ']'), '') || '}' FROM ring WHERE lane IS NOT NULL

-- name: sweep
-- The same where not even the lanes matter: all jobs in one row, the number of the lanes, and the last of them.
WITH {walk}
SELECT '[' || coalesce(group_concat(({tellings})), '') || ']', count(*), max(lane) FROM ring WHERE lane IS NOT NULL

-- name: lanes
-- Lanes with the best jobs of each (?3).
WITH {walk}
SELECT json_group_array(json_array(ring.lane, seq, priority, available_at, state, tenant, kind))
FROM ring LEFT JOIN job ON job.seq IN (
  SELECT seq FROM job AS due
  WHERE ready = 2 AND queue = ?1 AND due.lane = ring.lane AND (expires_at IS NULL OR expires_at > ?2)
  ORDER BY priority DESC, available_at, seq LIMIT ?3
) WHERE ring.lane IS NOT NULL

-- name: heads
-- `lanes` where one job of each will do (?3 is 1): it is the first entry of the index behind the lane before it.
WITH RECURSIVE ring(lane, seq, priority, available_at, state, tenant, kind, place) AS (
  SELECT * FROM (
    SELECT lane, seq, priority, available_at, state, tenant, kind, 1 FROM job
    WHERE ready = 2 AND queue = ?1 AND lane >= ?5 AND lane < ?6 AND (expires_at IS NULL OR expires_at > ?2)
    ORDER BY lane, priority DESC, available_at, seq LIMIT 1
  )
  UNION ALL
  SELECT job.lane, job.seq, job.priority, job.available_at, job.state, job.tenant, job.kind, place + ?3
  FROM ring JOIN job ON job.seq = (
    SELECT due.seq FROM job AS due
    WHERE due.ready = 2 AND due.queue = ?1 AND due.lane > ring.lane AND due.lane < ?6 AND (due.expires_at IS NULL OR due.expires_at > ?2)
    ORDER BY due.lane, due.priority DESC, due.available_at, due.seq LIMIT 1
  ) WHERE place < ?4
)
SELECT json_group_array(json_array(lane, seq, priority, available_at, state, tenant, kind)) FROM ring

-- name: aged_lanes
-- Of the same lanes, the jobs that have waited since ?7.
WITH {walk}, head(lane, priority) AS (
  SELECT lane, (SELECT priority FROM job WHERE ready = 2 AND queue = ?1 AND job.lane = ring.lane ORDER BY priority DESC LIMIT 1)
  FROM ring WHERE lane IS NOT NULL
  UNION ALL
  SELECT lane, (SELECT job.priority FROM job WHERE ready = 2 AND queue = ?1 AND job.lane = head.lane AND job.priority < head.priority
                ORDER BY job.priority DESC LIMIT 1)
  FROM head WHERE priority IS NOT NULL
)
SELECT json_group_array(json_array(head.lane, seq, job.priority, available_at, state, tenant, kind))
FROM head JOIN job ON job.seq IN (
  SELECT seq FROM job AS due
  WHERE ready = 2 AND queue = ?1 AND due.lane = head.lane AND due.priority = head.priority AND available_at <= ?7
    AND (expires_at IS NULL OR expires_at > ?2)
  ORDER BY available_at, seq LIMIT ?3
)

-- name: running_in_queue
SELECT coalesce(sum(jobs), 0) FROM tally WHERE state = 'running' AND (?1 = '*' OR queue = ?1)

-- name: running_in_lanes
SELECT count(*) FROM job
WHERE lane IS NOT NULL AND lease_expires_at IS NOT NULL AND lane >= ?2 AND lane < ?3 AND (?1 = '*' OR queue = ?1)

-- name: running_of_lanes
-- The same for many lanes at once.
SELECT json_group_array((
  SELECT count(*) FROM job WHERE lane IS NOT NULL AND lease_expires_at IS NOT NULL AND lane = wanted.value AND queue = ?1
)) FROM json_each(?2) AS wanted

-- name: buckets_of
SELECT json_group_array((SELECT full_at FROM bucket WHERE queue = ?1 AND per = ?2 AND subject = wanted.value)) FROM json_each(?3) AS wanted

-- name: bucket
SELECT full_at FROM bucket WHERE queue = ?1 AND per = ?2 AND subject = ?3

-- name: draw
-- (queue, per, subject, full_at) each.
INSERT OR REPLACE INTO bucket SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1)

-- name: full_buckets
DELETE FROM bucket WHERE full_at <= ?1

-- name: turn
SELECT lane, used, share, changes FROM turn WHERE queue = ?1

-- name: stance
-- Whether jobs have to line up (see `lines_up`), the turn, and whether jobs run that are not counted by lanes, in one look.
SELECT EXISTS (SELECT 1 FROM job WHERE ready = 1 AND queue = ?1)
  OR EXISTS (SELECT 1 FROM job WHERE ready = 0 AND queue = ?1 AND available_at <= ?2), coalesce(unnamed, 0), lane, used, share, changes
FROM (SELECT ?1 AS queue) LEFT JOIN turn USING (queue)

-- name: lined
-- How many jobs of a queue run, whether any stands in a lane, and whether some that run are not counted by lanes.
SELECT coalesce((SELECT jobs FROM tally WHERE state = 'running' AND queue = ?1), 0),
  EXISTS (SELECT 1 FROM job WHERE ready = 2 AND queue = ?1), coalesce((SELECT unnamed FROM turn WHERE queue = ?1), 0)

-- name: in_use
SELECT EXISTS (SELECT 1 FROM job WHERE ready = 2 AND queue = ?1)

-- name: unnamed
INSERT INTO turn (queue, unnamed) VALUES (?1, ?2) ON CONFLICT (queue) DO UPDATE SET unnamed = excluded.unnamed

-- name: turned
INSERT INTO turn (queue, lane, used, share) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue) DO UPDATE SET lane = excluded.lane, used = excluded.used, share = excluded.share

-- name: changed
-- Something may have become claimable in these queues (or, if null, in all).
UPDATE turn SET changes = changes + 1 WHERE ?1 IS NULL OR queue IN (SELECT value FROM json_each(?1))

-- name: comes_due
-- When the next job comes due that is not of these tenants and kinds.
SELECT available_at FROM job
WHERE ready = 0 AND queue = ?1 AND available_at > ?2 AND (expires_at IS NULL OR expires_at > available_at)
  AND tenant NOT IN (SELECT value FROM json_each(?3)) AND kind NOT IN (SELECT value FROM json_each(?4))
ORDER BY available_at LIMIT 1

-- name: standing
SELECT tenant, flow ->> {group}, count(*) FROM job WHERE lease_expires_at IS NOT NULL AND (?1 = '*' OR queue = ?1) GROUP BY 1, 2

-- name: buckets
SELECT per, subject, full_at FROM bucket WHERE queue = ?1 AND full_at > ?2

-- name: running_jobs
SELECT {columns} FROM job WHERE lease_expires_at IS NOT NULL AND queue = ?1

-- name: due_in_lanes
SELECT {columns} FROM job
WHERE ready = 2 AND queue = ?1 AND lane >= ?2 AND lane < ?3 AND (expires_at IS NULL OR expires_at > ?4) LIMIT ?5

-- name: newest_in_lanes
SELECT {columns} FROM job
WHERE ready = 2 AND queue = ?1 AND lane >= ?2 AND lane < ?3 AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY created_at DESC, id DESC LIMIT ?5

-- name: due_in_queue
SELECT {columns} FROM job WHERE ready = 1 AND queue = ?1 AND (expires_at IS NULL OR expires_at > ?4) LIMIT ?5

-- name: newest_in_queue
SELECT {columns} FROM job WHERE ready = 1 AND queue = ?1 AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY created_at DESC, id DESC LIMIT ?5

-- name: running_queues
SELECT queue FROM tally WHERE state = 'running' AND jobs > 0

-- name: party
SELECT tenant, kind, flow ->> {group} FROM job WHERE seq = ?1

-- name: held_since
-- `due_since` where tenants (?3) or kinds (?4) may be paused.
WITH RECURSIVE head (priority) AS (
  SELECT * FROM (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 ORDER BY priority DESC LIMIT 1)
  UNION ALL
  SELECT (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 AND priority < head.priority ORDER BY priority DESC LIMIT 1)
  FROM head WHERE head.priority IS NOT NULL
)
SELECT min(available_at) FROM (
  SELECT (SELECT available_at FROM job WHERE ready = 1 AND queue = ?1 AND priority = head.priority AND (expires_at IS NULL OR expires_at > ?2)
          AND tenant NOT IN (SELECT value FROM json_each(?3)) AND kind NOT IN (SELECT value FROM json_each(?4))
          ORDER BY available_at LIMIT 1) AS available_at FROM head
  UNION ALL
  SELECT * FROM (SELECT available_at FROM job WHERE ready = 0 AND queue = ?1 AND available_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
                 AND tenant NOT IN (SELECT value FROM json_each(?3)) AND kind NOT IN (SELECT value FROM json_each(?4))
                 ORDER BY available_at LIMIT 1)
)

-- name: laned_since
-- The same for what stands in lanes: the first of each priority of each lane.
WITH RECURSIVE ring(lane) AS (
  SELECT * FROM (SELECT lane FROM job WHERE ready = 2 AND queue = ?1 ORDER BY lane LIMIT 1)
  UNION ALL
  SELECT (SELECT job.lane FROM job WHERE ready = 2 AND queue = ?1 AND job.lane > ring.lane ORDER BY job.lane LIMIT 1)
  FROM ring WHERE lane IS NOT NULL
), head(lane, priority) AS (
  SELECT lane, (SELECT priority FROM job WHERE ready = 2 AND queue = ?1 AND job.lane = ring.lane ORDER BY priority DESC LIMIT 1)
  FROM ring WHERE lane IS NOT NULL
  UNION ALL
  SELECT lane, (SELECT job.priority FROM job WHERE ready = 2 AND queue = ?1 AND job.lane = head.lane AND job.priority < head.priority
                ORDER BY job.priority DESC LIMIT 1)
  FROM head WHERE priority IS NOT NULL
)
SELECT min((
  SELECT available_at FROM job
  WHERE ready = 2 AND queue = ?1 AND job.lane = head.lane AND job.priority = head.priority AND (expires_at IS NULL OR expires_at > ?2)
    AND tenant NOT IN (SELECT value FROM json_each(?3)) AND kind NOT IN (SELECT value FROM json_each(?4))
  ORDER BY available_at LIMIT 1
)) FROM head

-- name: aside_since
SELECT min(available_at) FROM job
WHERE ready = 3 AND queue = ?1 AND tenant = ?2 AND kind = ?3 AND (expires_at IS NULL OR expires_at > ?4)
