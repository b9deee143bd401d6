-- Flow control: lanes, whose turn it is, and how full the buckets are. The rules themselves are pages of the book `flow`.

-- Of a due job in a queue with lanes, and of a running one that is counted by its lane.
-- `ready` = 2 marks a job that stands in its lane, 3 one that was put aside because its tenant or kind is paused.
ALTER TABLE job ADD COLUMN lane TEXT;

CREATE INDEX job_lane ON job (queue, lane, priority DESC, available_at, seq) WHERE ready = 2;
CREATE INDEX job_aside ON job (queue, tenant, kind) WHERE ready = 3;
CREATE INDEX job_held ON job (lane, queue) WHERE lane IS NOT NULL AND lease_expires_at IS NOT NULL;

-- Where the last claim of a queue stopped; `changes` grows whenever something may have become claimable there.
CREATE TABLE turn (
  queue   TEXT PRIMARY KEY,
  lane    TEXT    NOT NULL DEFAULT '',
  used    INTEGER NOT NULL DEFAULT 0,
  share   INTEGER NOT NULL DEFAULT 1,
  changes INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- When a bucket is full again; one that is not here is full.
CREATE TABLE bucket (
  queue   TEXT    NOT NULL,
  per     TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  full_at INTEGER NOT NULL,
  PRIMARY KEY (queue, per, subject)
) STRICT, WITHOUT ROWID;

-- `stamp` grows with every change of a rule; running jobs are counted by the lanes of the stamp `laned`.
CREATE TABLE ruling (stamp INTEGER NOT NULL, laned INTEGER NOT NULL) STRICT;
INSERT INTO ruling SELECT count(*), 0 FROM page WHERE book = 'flow';

CREATE TRIGGER rule_is_added AFTER INSERT ON page WHEN NEW.book = 'flow' BEGIN UPDATE ruling SET stamp = stamp + 1; END;
CREATE TRIGGER rule_is_changed AFTER UPDATE ON page WHEN NEW.book = 'flow' BEGIN UPDATE ruling SET stamp = stamp + 1; END;
CREATE TRIGGER rule_is_removed AFTER DELETE ON page WHEN OLD.book = 'flow' BEGIN UPDATE ruling SET stamp = stamp + 1; END;
