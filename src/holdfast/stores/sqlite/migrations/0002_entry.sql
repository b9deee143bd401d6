-- The way in for few jobs at a time: one statement stores them and counts them, so it needs no transaction around it.

CREATE VIEW entry AS
SELECT id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at, expires_at,
  steps_total, state, available_at, updated_at, ready
FROM job;

CREATE TRIGGER entry_is_counted INSTEAD OF INSERT ON entry BEGIN
  INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                   expires_at, steps_total, state, available_at, updated_at, ready)
  VALUES (NEW.id, NEW.kind, NEW.queue, NEW.tenant, NEW.user, NEW.priority, NEW.payload, NEW.retry, NEW.max_attempts, NEW.crash_cap,
          NEW.trigger, NEW.trace_id, NEW.key, NEW.created_at, NEW.expires_at, NEW.steps_total, NEW.state, NEW.available_at,
          NEW.updated_at, NEW.ready);
  INSERT INTO tally (queue, state, jobs) VALUES (NEW.queue, NEW.state, 1) ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + 1;
END;
