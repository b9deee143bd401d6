-- The way in for jobs that differ in nothing but id and payload: one statement stores and counts any number of them. `jobs` is a JSON object
-- of payloads by id, because a value that crosses into SQLite by itself costs more than its share of a text.

CREATE VIEW entries AS
SELECT '{}' AS jobs, 0 AS number, kind, queue, tenant, user, priority, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
  expires_at, steps_total, state, available_at, updated_at, ready
FROM job;

CREATE TRIGGER entries_are_counted INSTEAD OF INSERT ON entries BEGIN
  INSERT INTO job (id, payload, kind, queue, tenant, user, priority, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                   expires_at, steps_total, state, available_at, updated_at, ready)
  SELECT each.key, each.value, NEW.kind, NEW.queue, NEW.tenant, NEW.user, NEW.priority, NEW.retry, NEW.max_attempts, NEW.crash_cap,
    NEW.trigger, NEW.trace_id, NEW.key, NEW.created_at, NEW.expires_at, NEW.steps_total, NEW.state, NEW.available_at, NEW.updated_at,
    NEW.ready
  FROM json_each(NEW.jobs) AS each;
  INSERT INTO tally (queue, state, jobs) VALUES (NEW.queue, NEW.state, NEW.number)
  ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + NEW.number;
END;

-- The same for steps: one statement records a step of each of many jobs, or nothing. `marks` is as `checkpoint` takes them.
CREATE VIEW marks AS SELECT '[]' AS marks, 0 AS number, 0 AS at WHERE FALSE;

CREATE TRIGGER marks_are_recorded INSTEAD OF INSERT ON marks BEGIN
  UPDATE job SET version = version + 1, step_cursor = step_cursor + mark.advance, crashes = 0, updated_at = NEW.at
  FROM (
    SELECT value ->> 0 AS id, value ->> 3 AS token, value ->> 4 AS lease_id, value ->> 5 AS yields, value ->> 6 AS advance
    FROM json_each(NEW.marks)
  ) AS mark
  WHERE job.id = mark.id AND job.state = 'running' AND job.token = mark.token AND job.lease_id = mark.lease_id
    AND NOT (mark.yields AND job.cancel_requested);
  SELECT RAISE(ABORT, 'not every guard holds') WHERE changes() <> NEW.number;
  INSERT INTO step
  SELECT job.seq, job.version, mark.value ->> 1, mark.value ->> 2, NEW.at FROM json_each(NEW.marks) AS mark JOIN job ON job.id = mark.value ->> 0;
END;
