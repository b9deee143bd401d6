-- A trip by one statement: jobs of one lease completed, or nothing, others claimed, and all of them counted. One statement instead of several,
-- because after each of them a worker waits for its turn among the handlers that run meanwhile.
--
-- `results` is an object of results by job id; `counted` is what (queue, state, jobs) gain; `seqs` is an array of the jobs to be claimed. Or
-- the first `most` of `queue` are, and counted here: if all is as it was when the rules had that stamp, and nothing waits in other queues
-- (unless `only` this one is asked for). Whoever asks for that finds the jobs by their lease, which must be a new one.

CREATE VIEW trips AS
SELECT '{}' AS results, 0 AS number, 0 AS token, '' AS lease_id, 0 AS purge_after, '[]' AS counted, 0 AS at,
  '[]' AS seqs, '' AS queue, 0 AS most, 0 AS stamp, FALSE AS only, '' AS next_lease_id, '' AS owner, 0 AS lease, FALSE AS by_lane
WHERE FALSE;

CREATE TRIGGER trips_are_made INSTEAD OF INSERT ON trips BEGIN
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
