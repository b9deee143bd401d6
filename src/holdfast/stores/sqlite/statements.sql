-- name: columns
-- The columns of a JobRecord, in its order.
id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at, expires_at,
steps_total, state, version, generation, attempt, crashes, available_at, token, lease_id, lease_owner, lease_expires_at, claimed_at,
begun_at, started_at, finished_at, updated_at, purge_at, cause, failure_code, failure_message, failure_retryable, cancel_requested,
step_cursor, result, parent, code_version, flow

-- name: insert
INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                 expires_at, steps_total, state, available_at, updated_at, ready)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_laden
-- The same for jobs that have more than most.
INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                 expires_at, steps_total, state, available_at, updated_at, ready, step_cursor, parent, code_version, flow)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_laned
-- The same for jobs that may go straight into lanes.
INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                 expires_at, steps_total, state, available_at, updated_at, ready, step_cursor, parent, code_version, flow, lane)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_alike
-- Any number of jobs that differ in id and payload only, counted by the same statement.
INSERT INTO entries (jobs, number, kind, queue, tenant, user, priority, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                     expires_at, steps_total, state, available_at, updated_at, ready)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: inherit_step
-- Steps that a job starts out with; they stand before all that it records itself, whose positions are versions.
INSERT OR IGNORE INTO step SELECT seq, ?2, ?3, ?4, ?5 FROM job WHERE id = ?1

-- name: known
SELECT json_group_array(id) FROM job WHERE id IN (SELECT value FROM json_each(?1))

-- name: key_owner
SELECT job.id FROM job_key JOIN job USING (seq)
WHERE job_key.tenant = ?1 AND job_key.key = ?2 AND (job_key.expires_at IS NULL OR job_key.expires_at > ?3)

-- name: take_key
INSERT OR REPLACE INTO job_key (tenant, key, seq, expires_at) SELECT ?1, ?2, seq, ?3 FROM job WHERE id = ?4

-- name: waiting_queues
SELECT queue FROM standing WHERE state IN ('queued', 'retrying') GROUP BY queue HAVING sum(jobs) > 0

-- name: promote
-- Jobs that have come due join the claim order. Bounded, so that a crowd falling due at midnight cannot stall a claim.
UPDATE job SET ready = 1
WHERE seq IN (SELECT seq FROM job WHERE ready = 0 AND queue = ?1 AND available_at <= ?2 ORDER BY available_at LIMIT 2000)

-- name: next_columns
-- What `claimed_columns` will tell of a job, before it is claimed at ?2.
id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
expires_at, steps_total, version + 1, generation, attempt + 1, crashes, available_at, token + 1, coalesce(started_at, ?2),
failure_code, failure_message, failure_retryable, step_cursor, parent, code_version, json(flow)

-- name: pick
-- The jobs to be claimed, and all that is known of them as `claimed` tells it, before they are: each row is looked at once. One aggregated row
-- instead of many: each row that crosses into Python gives up the interpreter lock once.
SELECT json_group_array(seq), count(*), coalesce(sum(retrying), 0), {telling} FROM (
  SELECT seq, state = 'retrying' AS retrying, json_array({next_columns}) AS told FROM job
  WHERE ready = 1 AND queue = ?1 AND (expires_at IS NULL OR expires_at > ?2)
  ORDER BY priority DESC, available_at, seq LIMIT ?3
)

-- name: pick_ranked
-- The same with what is needed to rank jobs of several queues.
SELECT json_group_array(json_array(seq, priority, available_at, state)) FROM (
  SELECT seq, priority, available_at, state FROM job
  WHERE ready = 1 AND queue = ?1 AND (expires_at IS NULL OR expires_at > ?2)
  ORDER BY priority DESC, available_at, seq LIMIT ?3
)

-- name: pick_one
SELECT seq, queue, state FROM job
WHERE id = ?1 AND ready IS NOT NULL AND available_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2) AND tenant = coalesce(?3, tenant)

-- name: telling
-- An array of what is told of each. The texts are put together as they are: rows of many columns would be carried from one query to the other.
'[' || coalesce(group_concat(told), '') || ']'

-- name: claimed_columns
-- Only what the claim itself did not set; `rows.claimed` fills in the rest.
job.id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, job.key, created_at,
expires_at, steps_total, version, generation, attempt, crashes, available_at, token, started_at,
failure_code, failure_message, failure_retryable, step_cursor, job.parent, code_version, json(flow)

-- name: claimed
SELECT {telling} FROM (
  SELECT json_array({claimed_columns}) AS told FROM json_each(?1) AS picked CROSS JOIN job ON job.seq = picked.value ORDER BY picked.key
)

-- name: claimed_just_now
SELECT {telling} FROM (
  SELECT json_array({claimed_columns}) AS told FROM job WHERE lease_expires_at = ?1 AND lease_id = ?2 ORDER BY priority DESC, available_at, seq
)

-- name: trip
-- The common ending, for all jobs of one lease at once, and the claim of others.
INSERT INTO trips (results, number, token, lease_id, purge_after, counted, at, seqs, queue, most, stamp, only, next_lease_id, owner, lease, by_lane)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: write
-- What the lifecycle decided for one job, guarded by the version it was decided on.
UPDATE job SET state = :state, version = :version, generation = :generation, attempt = :attempt, crashes = :crashes,
  available_at = :available_at, lease_id = :lease_id, lease_expires_at = :lease_expires_at, begun_at = :begun_at,
  finished_at = :finished_at, updated_at = :updated_at, purge_at = :purge_at, expires_at = :expires_at, cause = :cause,
  failure_code = :failure_code, failure_message = :failure_message, failure_retryable = :failure_retryable,
  cancel_requested = :cancel_requested, step_cursor = :step_cursor, result = :result, flow = :flow, ready = :ready
WHERE id = :id AND version = :version - 1

-- name: end_attempt
INSERT INTO attempt SELECT seq, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 FROM job WHERE id = ?1

-- name: checkpoint
-- A step of each of these jobs, or nothing; a row for each step that jobs of one lease have come to.
INSERT INTO checkpoints (results, number, step, token, lease_id, yields, advance, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: record_step
-- (id, step, result) each. A version is used once, and versions grow: they say which step came first.
INSERT OR IGNORE INTO step
SELECT job.seq, job.version, mark.value ->> 1, mark.value ->> 2, ?2 FROM json_each(?1) AS mark JOIN job ON job.id = mark.value ->> 0

-- name: recorded
SELECT 1 FROM step WHERE seq = (SELECT seq FROM job WHERE id = ?1) AND name = ?2

-- name: record_signal
INSERT INTO signal SELECT seq, version, ?2, ?3, ?4, ?5 FROM job WHERE id = ?1

-- name: signalled
SELECT 1 FROM signal WHERE seq = (SELECT seq FROM job WHERE id = ?1) AND id = ?2

-- name: heartbeat
-- (id, token, lease id, begun) each.
UPDATE job SET version = version + 1, lease_expires_at = ?2 + ?3, updated_at = ?2,
  begun_at = CASE WHEN beat.begun THEN coalesce(begun_at, ?2) ELSE begun_at END
FROM (
  SELECT value ->> 0 AS id, value ->> 1 AS token, value ->> 2 AS lease_id, value ->> 3 AS begun FROM json_each(?1)
) AS beat
WHERE job.id = beat.id AND job.state = 'running' AND job.token = beat.token AND job.lease_id = beat.lease_id

-- name: progress
-- What heartbeats tell of progress, after the beats themselves; ?2 is a plain flow and ?3 the place in it.
UPDATE job SET flow = json_set(coalesce(flow, ?2), ?3, beat.progress)
FROM (
  SELECT value ->> 0 AS id, value ->> 1 AS token, value ->> 2 AS lease_id, value ->> 4 AS progress FROM json_each(?1)
) AS beat
WHERE job.id = beat.id AND job.state = 'running' AND job.token = beat.token AND job.lease_id = beat.lease_id

-- name: leases
SELECT json_group_array(json_array(state, token, lease_id, cancel_requested)) FROM (
  SELECT state, token, lease_id, cancel_requested
  FROM json_each(?1) AS beat LEFT JOIN job ON job.id = beat.value ->> 0 ORDER BY beat.key
)

-- name: abandon
UPDATE job SET version = version + 1, lease_expires_at = ?2, updated_at = ?2
WHERE lease_expires_at IS NOT NULL AND lease_owner = ?1

-- name: read
SELECT {columns} FROM job WHERE id = ?1

-- name: attempts
SELECT token, generation, attempt, owner, claimed_at, ended_at, outcome, code, message, traceback
FROM attempt WHERE seq = (SELECT seq FROM job WHERE id = ?1) ORDER BY token

-- name: steps
SELECT name, result, recorded_at FROM step WHERE seq = (SELECT seq FROM job WHERE id = ?1) ORDER BY position

-- name: signals
SELECT id, name, payload, sent_at FROM signal WHERE seq = (SELECT seq FROM job WHERE id = ?1) ORDER BY position

-- name: open_children
SELECT value FROM json_each(?1) WHERE EXISTS (SELECT 1 FROM job WHERE parent = value AND finished_at IS NULL)

-- name: tally
INSERT INTO tally (queue, state, jobs) VALUES (?, ?, ?) ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs

-- name: fold
INSERT INTO newcomers VALUES (TRUE)

-- name: counts
SELECT queue, state, sum(jobs) FROM standing GROUP BY queue, state HAVING sum(jobs) <> 0

-- name: expired_leases
SELECT {columns} FROM job WHERE lease_expires_at IS NOT NULL AND lease_expires_at <= ?1 ORDER BY lease_expires_at LIMIT ?2

-- name: overdue
SELECT {columns} FROM job WHERE expires_at IS NOT NULL AND ready IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2

-- name: unsubmitted
-- No job of this store is left `created` by an ordinary enqueue, so no index is kept for it: the counter says when to look.
SELECT {columns} FROM job WHERE state = 'created' AND updated_at <= ?1 ORDER BY updated_at LIMIT ?2

-- name: purgeable
SELECT json_group_array(seq) FROM (SELECT seq FROM job WHERE purge_at IS NOT NULL AND purge_at <= ?1 ORDER BY purge_at LIMIT ?2)

-- name: purge_tallies
SELECT queue, state, count(*) FROM job WHERE seq IN (SELECT value FROM json_each(?1)) GROUP BY queue, state

-- name: permit
UPDATE permit SET purge_before = ?1

-- name: purge_keys
DELETE FROM job_key WHERE (tenant, key) IN (
  SELECT tenant, key FROM job WHERE key IS NOT NULL AND seq IN (SELECT value FROM json_each(?1))
) AND seq IN (SELECT value FROM json_each(?1))

-- name: purge_attempts
DELETE FROM attempt WHERE seq IN (SELECT value FROM json_each(?1))

-- name: purge_steps
DELETE FROM step WHERE seq IN (SELECT value FROM json_each(?1))

-- name: purge_signals
DELETE FROM signal WHERE seq IN (SELECT value FROM json_each(?1))

-- name: artifacts
-- What purged jobs leave outside the store, told by how its reference begins.
SELECT text FROM (
  SELECT seq, -2 AS place, 0 AS position, payload AS text FROM job WHERE seq IN (SELECT value FROM json_each(?1))
  UNION ALL
  SELECT seq, -1, 0, result FROM job WHERE seq IN (SELECT value FROM json_each(?1))
  UNION ALL
  SELECT seq, 0, position, result FROM step WHERE seq IN (SELECT value FROM json_each(?1))
) WHERE substr(text, 1, length(?2)) = ?2 ORDER BY seq, place, position

-- name: purge
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?1))

-- name: pause
INSERT OR IGNORE INTO paused_queue VALUES (?1)

-- name: resume
DELETE FROM paused_queue WHERE queue = ?1

-- name: paused
SELECT queue FROM paused_queue

-- name: enlist
INSERT OR REPLACE INTO worker VALUES (?1, ?2, ?3)

-- name: dismiss
DELETE FROM worker WHERE id = ?1 OR expires_at <= ?2

-- name: workers
SELECT record FROM worker WHERE expires_at > ?1 ORDER BY id

-- name: lead
INSERT INTO role VALUES (?1, ?2, ?3 + ?4)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
WHERE role.owner = excluded.owner OR role.expires_at <= ?3

-- name: leader
SELECT owner, expires_at FROM role WHERE name = ?1

-- name: next_due
SELECT min(available_at) FROM (
  SELECT * FROM (SELECT available_at FROM job WHERE ready = 1 AND queue = ?1 AND (expires_at IS NULL OR expires_at > ?2)
                 ORDER BY priority DESC, available_at, seq LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT available_at FROM job WHERE ready = 0 AND queue = ?1 AND (expires_at IS NULL OR expires_at > max(available_at, ?2))
                 ORDER BY available_at LIMIT 1)
)

-- name: due_since
-- The first of each priority, found by leaping from one priority to the next along the index; and the first that nobody has promoted yet.
WITH RECURSIVE lane (priority) AS (
  SELECT * FROM (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 ORDER BY priority DESC LIMIT 1)
  UNION ALL
  SELECT (SELECT priority FROM job WHERE ready = 1 AND queue = ?1 AND priority < lane.priority ORDER BY priority DESC LIMIT 1)
  FROM lane WHERE lane.priority IS NOT NULL
)
SELECT min(available_at) FROM (
  SELECT (SELECT available_at FROM job WHERE ready = 1 AND queue = ?1 AND priority = lane.priority AND (expires_at IS NULL OR expires_at > ?2)
          ORDER BY available_at LIMIT 1) AS available_at
  FROM lane WHERE lane.priority IS NOT NULL
  UNION ALL
  SELECT * FROM (SELECT available_at FROM job WHERE ready = 0 AND queue = ?1 AND available_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
                 ORDER BY available_at LIMIT 1)
)

-- name: recount
SELECT queue, state, count(*) FROM job GROUP BY queue, state

-- name: orphan_keys
SELECT tenant, key FROM job_key WHERE seq NOT IN (SELECT seq FROM job)

-- name: misplaced
SELECT id, state, ready FROM job
WHERE (state IN ('queued', 'retrying')) <> (ready IS NOT NULL) OR (state = 'running') <> (lease_expires_at IS NOT NULL)
