-- Steps of many jobs by one statement, as the old way in (`marks`, which stays for whoever has the file open) did, with less to read: jobs
-- that record the same step under the same lease are one row. `results` is an object of results by job id, because taking a value out of
-- an array costs more than the record itself.

CREATE VIEW checkpoints AS
SELECT '{}' AS results, 0 AS number, '' AS step, 0 AS token, '' AS lease_id, FALSE AS yields, 0 AS advance, 0 AS at WHERE FALSE;

CREATE TRIGGER checkpoints_are_recorded INSTEAD OF INSERT ON checkpoints BEGIN
  UPDATE job SET version = version + 1, step_cursor = step_cursor + NEW.advance, crashes = 0, updated_at = NEW.at
  FROM json_each(NEW.results) AS mark
  WHERE job.id = mark.key AND job.state = 'running' AND job.token = NEW.token AND job.lease_id = NEW.lease_id
    AND NOT (NEW.yields AND job.cancel_requested);
  SELECT RAISE(ABORT, 'not every guard holds') WHERE changes() <> NEW.number;
  INSERT INTO step
  SELECT job.seq, job.version, NEW.step, mark.value, NEW.at FROM json_each(NEW.results) AS mark JOIN job ON job.id = mark.key;
END;
