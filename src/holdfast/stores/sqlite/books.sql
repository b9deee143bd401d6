-- name: account
SELECT tenant, granted, reserved, spent FROM credit_account WHERE tenant = ?1

-- name: accounts
SELECT tenant, granted, reserved, spent FROM credit_account ORDER BY tenant

-- name: open_account
INSERT OR IGNORE INTO credit_account (tenant) VALUES (?1)

-- name: granted
SELECT 1 FROM credit_entry WHERE verb = 'grant' AND tenant = ?1 AND step = ?2

-- name: enter
-- A tenant without an account has no books.
INSERT INTO credit_entry (tenant, verb, job_id, generation, step, granted, reserved, spent, at)
SELECT tenant, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM credit_account WHERE tenant = ?1

-- name: entries
SELECT tenant, verb, job_id, generation, step, granted, reserved, spent, at
FROM credit_entry WHERE tenant = ?1 ORDER BY position DESC LIMIT ?2

-- name: schedules
SELECT name, spec, next_at, last_at, paused, version FROM schedule ORDER BY name

-- name: add_schedule
INSERT OR IGNORE INTO schedule (name, spec, next_at, last_at, paused, version) VALUES (?1, ?2, ?3, ?4, ?5, 1)

-- name: change_schedule
UPDATE schedule SET spec = ?2, next_at = ?3, last_at = ?4, paused = ?5, version = version + 1 WHERE name = ?1 AND version = ?6

-- name: remove_schedule
DELETE FROM schedule WHERE name = ?1

-- name: tell
-- (id, job id, name, body) each.
INSERT INTO event (id, job_id, name, body, at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, ?2 FROM json_each(?1) ORDER BY key

-- name: events
SELECT position, id, job_id, name, body, at FROM event WHERE position > ?1 ORDER BY position LIMIT ?2

-- name: sinks
SELECT name, position FROM sink

-- name: reach
INSERT INTO sink VALUES (?1, max(?2, 0)) ON CONFLICT (name) DO UPDATE SET position = max(position, excluded.position)

-- name: remove_sink
DELETE FROM sink WHERE name = ?1

-- name: told
-- The first event that every sink has had.
SELECT min(position) FROM event WHERE position <= coalesce((SELECT min(position) FROM sink), 9223372036854775807)

-- name: trim
DELETE FROM event WHERE position IN (
  SELECT position FROM event WHERE position <= coalesce((SELECT min(position) FROM sink), 9223372036854775807)
  ORDER BY position LIMIT ?1
)

-- name: unbalanced
-- Accounts that are not the sum of their entries.
SELECT account.tenant FROM credit_account AS account LEFT JOIN credit_entry AS entry ON entry.tenant = account.tenant
GROUP BY account.tenant
HAVING (coalesce(sum(entry.granted), 0), coalesce(sum(entry.reserved), 0), coalesce(sum(entry.spent), 0))
  <> (account.granted, account.reserved, account.spent)

-- name: unreserved
-- Accounts that set aside more or less than their jobs do; ?1 is the place of the reserved credits in a flow.
SELECT account.tenant, account.reserved, coalesce(job.reserved, 0)
FROM credit_account AS account LEFT JOIN (
  SELECT tenant, sum(flow ->> ?1) AS reserved FROM job WHERE flow IS NOT NULL GROUP BY tenant
) AS job ON job.tenant = account.tenant
WHERE coalesce(job.reserved, 0) <> account.reserved
