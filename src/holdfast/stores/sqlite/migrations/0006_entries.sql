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
