-- Few jobs at a time are counted by whoever comes next, and not by whoever stores them: so a lone enqueue writes a page less, and waits the
-- less for the disk. They are marked `uncounted` and came as `queued`; jobs up to `census.seq` have been counted, whatever they are marked.

ALTER TABLE job ADD COLUMN uncounted INTEGER;
CREATE TABLE census (seq INTEGER NOT NULL) STRICT;
INSERT INTO census SELECT coalesce(max(seq), 0) FROM job;

-- The counters as they stand, at any moment; a queue and state may be in there twice.
CREATE VIEW standing AS
SELECT queue, state, jobs FROM tally
UNION ALL
SELECT queue, 'queued', count(*) FROM job WHERE seq > (SELECT seq FROM census) AND uncounted GROUP BY queue;

-- `INSERT INTO newcomers VALUES (TRUE)` counts those who came since the last time.
CREATE VIEW newcomers AS SELECT FALSE AS counted WHERE FALSE;

CREATE TRIGGER newcomers_are_counted INSTEAD OF INSERT ON newcomers WHEN NEW.counted BEGIN
  INSERT INTO tally (queue, state, jobs)
  SELECT queue, 'queued', count(*) FROM job WHERE seq > (SELECT seq FROM census) AND uncounted GROUP BY queue
  ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs;
  UPDATE census SET seq = (SELECT coalesce(max(seq), 0) FROM job) WHERE seq <> (SELECT coalesce(max(seq), 0) FROM job);
END;

-- Who goes must have been counted; and the place of the last job may be given again.
CREATE TRIGGER job_was_counted BEFORE DELETE ON job WHEN OLD.seq > (SELECT seq FROM census) BEGIN
  INSERT INTO newcomers VALUES (TRUE);
END;
CREATE TRIGGER job_makes_room AFTER DELETE ON job WHEN OLD.seq = (SELECT seq FROM census) BEGIN
  UPDATE census SET seq = (SELECT coalesce(max(seq), 0) FROM job);
END;

-- As before, for programs that are older than this file; but that queued jobs are left to be counted.
DROP TRIGGER entry_is_counted;
CREATE TRIGGER entry_is_counted INSTEAD OF INSERT ON entry BEGIN
  INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                   expires_at, steps_total, state, available_at, updated_at, ready, step_cursor, parent, code_version, flow, uncounted)
  VALUES (NEW.id, NEW.kind, NEW.queue, NEW.tenant, NEW.user, NEW.priority, NEW.payload, NEW.retry, NEW.max_attempts, NEW.crash_cap,
          NEW.trigger, NEW.trace_id, NEW.key, NEW.created_at, NEW.expires_at, NEW.steps_total, NEW.state, NEW.available_at,
          NEW.updated_at, NEW.ready, coalesce(NEW.step_cursor, 0), NEW.parent, coalesce(NEW.code_version, 0), NEW.flow, NEW.state = 'queued');
  INSERT INTO tally (queue, state, jobs) SELECT NEW.queue, NEW.state, 1 WHERE NEW.state <> 'queued'
  ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + 1;
END;

-- As before, but that few are left to be counted.
DROP TRIGGER entries_are_counted;
CREATE TRIGGER entries_are_counted INSTEAD OF INSERT ON entries BEGIN
  INSERT INTO job (id, payload, kind, queue, tenant, user, priority, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                   expires_at, steps_total, state, available_at, updated_at, ready, uncounted)
  SELECT each.key, each.value, NEW.kind, NEW.queue, NEW.tenant, NEW.user, NEW.priority, NEW.retry, NEW.max_attempts, NEW.crash_cap,
    NEW.trigger, NEW.trace_id, NEW.key, NEW.created_at, NEW.expires_at, NEW.steps_total, NEW.state, NEW.available_at, NEW.updated_at,
    NEW.ready, NEW.number < 100 AND NEW.state = 'queued'
  FROM json_each(NEW.jobs) AS each;
  INSERT INTO tally (queue, state, jobs) SELECT NEW.queue, NEW.state, NEW.number WHERE NOT (NEW.number < 100 AND NEW.state = 'queued')
  ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + NEW.number;
END;

-- As in 0007, but that newcomers are counted first.
DROP TRIGGER trips_are_made;
CREATE TRIGGER trips_are_made INSTEAD OF INSERT ON trips BEGIN
  INSERT INTO newcomers VALUES (NEW.most > 0);
  SELECT RAISE(ABORT, 'this takes a closer look') FROM ruling
  WHERE NEW.most > 0 AND (
    stamp <> NEW.stamp OR laned <> NEW.stamp OR EXISTS (SELECT 1 FROM paused_queue)
    OR EXISTS (SELECT 1 FROM job WHERE ready = 0 AND queue = NEW.queue AND available_at <= NEW.at)
    OR EXISTS (SELECT 1 FROM job WHERE lease_expires_at = NEW.at + NEW.lease AND lease_id = NEW.next_lease_id)
    OR NOT NEW.only AND EXISTS (SELECT 1 FROM tally WHERE state IN ('queued', 'retrying') AND jobs > 0 AND queue <> NEW.queue)
  );
  UPDATE job SET state = 'succeeded', version = version + 1, crashes = 0, lease_expires_at = NULL,
    finished_at = NEW.at, updated_at = NEW.at, purge_at = NEW.at + NEW.purge_after, cause = NULL,
    failure_code = NULL, failure_message = NULL, failure_retryable = NULL, result = done.value
  FROM json_each(NEW.results) AS done
  WHERE job.id = done.key AND job.state = 'running' AND job.token = NEW.token AND job.lease_id = NEW.lease_id;
  SELECT RAISE(ABORT, 'not every guard holds') WHERE changes() <> NEW.number;
  INSERT INTO tally (queue, state, jobs)
  SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(NEW.counted) WHERE TRUE
  UNION ALL
  SELECT NEW.queue, state, -count(*) FROM (
    SELECT state FROM job WHERE ready = 1 AND queue = NEW.queue AND (expires_at IS NULL OR expires_at > NEW.at)
    ORDER BY priority DESC, available_at, seq LIMIT NEW.most
  ) GROUP BY state
  ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs;
  -- A job keeps its lane if those that run are counted by lanes; else there is an index less to write.
  UPDATE job SET state = 'running', ready = NULL, lane = CASE WHEN NEW.by_lane THEN lane END, version = version + 1, attempt = attempt + 1,
    token = token + 1, lease_id = NEW.next_lease_id, lease_owner = NEW.owner, lease_expires_at = NEW.at + NEW.lease, claimed_at = NEW.at,
    begun_at = NULL, started_at = coalesce(started_at, NEW.at), updated_at = NEW.at
  WHERE ready IS NOT NULL AND seq IN (
    SELECT value FROM json_each(NEW.seqs)
    UNION ALL
    SELECT seq FROM (
      SELECT seq FROM job WHERE ready = 1 AND queue = NEW.queue AND (expires_at IS NULL OR expires_at > NEW.at)
      ORDER BY priority DESC, available_at, seq LIMIT NEW.most
    )
  );
  INSERT INTO tally (queue, state, jobs) SELECT NEW.queue, 'running', changes() WHERE NEW.most > 0 AND changes() > 0
  ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs;
END;
