-- Workflows: whose child a job is, which version of the code it runs on, and its flow (JSON of the values of `Flow`, in their order).
-- And what lies around them: signals, credits, schedules and events.

ALTER TABLE job ADD COLUMN parent TEXT;
ALTER TABLE job ADD COLUMN code_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN flow TEXT;

-- The children of a job, those first that have not ended.
CREATE INDEX job_family ON job (parent, finished_at) WHERE parent IS NOT NULL;

DROP TRIGGER job_envelope_is_fixed;
CREATE TRIGGER job_envelope_is_fixed BEFORE UPDATE OF
  seq, id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at, steps_total,
  parent, code_version
ON job BEGIN
  SELECT RAISE(ABORT, 'what a job was asked to do cannot be changed');
END;

DROP VIEW entry;
CREATE VIEW entry AS
SELECT id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at, expires_at,
  steps_total, state, available_at, updated_at, ready, step_cursor, parent, code_version, flow
FROM job;

-- Most jobs come without the last four.
CREATE TRIGGER entry_is_counted INSTEAD OF INSERT ON entry BEGIN
  INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                   expires_at, steps_total, state, available_at, updated_at, ready, step_cursor, parent, code_version, flow)
  VALUES (NEW.id, NEW.kind, NEW.queue, NEW.tenant, NEW.user, NEW.priority, NEW.payload, NEW.retry, NEW.max_attempts, NEW.crash_cap,
          NEW.trigger, NEW.trace_id, NEW.key, NEW.created_at, NEW.expires_at, NEW.steps_total, NEW.state, NEW.available_at,
          NEW.updated_at, NEW.ready, coalesce(NEW.step_cursor, 0), NEW.parent, coalesce(NEW.code_version, 0), NEW.flow);
  INSERT INTO tally (queue, state, jobs) VALUES (NEW.queue, NEW.state, 1) ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + 1;
END;

-- A step is found by its name, in one tree instead of two; `position` is the version that it left its job at, and says only which came first.
CREATE TABLE named_step (
  seq         INTEGER NOT NULL,
  position    INTEGER NOT NULL,
  name        TEXT    NOT NULL,
  result      TEXT,
  recorded_at INTEGER NOT NULL,
  PRIMARY KEY (seq, name)
) STRICT, WITHOUT ROWID;
INSERT INTO named_step SELECT seq, position, name, result, recorded_at FROM step;
DROP TABLE step;
ALTER TABLE named_step RENAME TO step;

-- `position` is the version that the signal left the job at.
CREATE TABLE signal (
  seq      INTEGER NOT NULL,
  position INTEGER NOT NULL,
  id       TEXT    NOT NULL,
  name     TEXT    NOT NULL,
  payload  TEXT,
  sent_at  INTEGER NOT NULL,
  PRIMARY KEY (seq, position),
  UNIQUE (seq, id)
) STRICT, WITHOUT ROWID;

-- No statement can spend what was not granted.
CREATE TABLE credit_account (
  tenant   TEXT PRIMARY KEY,
  granted  INTEGER NOT NULL DEFAULT 0,
  reserved INTEGER NOT NULL DEFAULT 0,
  spent    INTEGER NOT NULL DEFAULT 0,
  CHECK (reserved + spent <= granted)
) STRICT, WITHOUT ROWID;

-- `step` is the id of a grant, or the step that credits were spent in.
CREATE TABLE credit_entry (
  position   INTEGER PRIMARY KEY,
  tenant     TEXT    NOT NULL,
  verb       TEXT    NOT NULL,
  job_id     TEXT,
  generation INTEGER NOT NULL,
  step       TEXT,
  granted    INTEGER NOT NULL,
  reserved   INTEGER NOT NULL,
  spent      INTEGER NOT NULL,
  at         INTEGER NOT NULL
) STRICT;

CREATE INDEX credit_entry_tenant ON credit_entry (tenant);
CREATE UNIQUE INDEX credit_entry_grant ON credit_entry (tenant, step) WHERE verb = 'grant';

-- An account changes by its entries alone, so it is their sum.
CREATE TRIGGER credit_entry_is_booked AFTER INSERT ON credit_entry BEGIN
  UPDATE credit_account SET granted = granted + NEW.granted, reserved = reserved + NEW.reserved, spent = spent + NEW.spent
  WHERE tenant = NEW.tenant;
END;

CREATE TRIGGER credit_entry_is_final BEFORE UPDATE ON credit_entry BEGIN
  SELECT RAISE(ABORT, 'an entry in the books cannot be changed');
END;

CREATE TRIGGER credit_entry_is_kept BEFORE DELETE ON credit_entry BEGIN
  SELECT RAISE(ABORT, 'an entry in the books cannot be removed');
END;

CREATE TABLE schedule (
  name    TEXT PRIMARY KEY,
  spec    TEXT    NOT NULL,
  next_at INTEGER NOT NULL,
  last_at INTEGER,
  paused  INTEGER NOT NULL,
  version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One writes at a time, so positions grow in the order of commits; a position is never used twice.
CREATE TABLE event (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  id       TEXT    NOT NULL,
  job_id   TEXT    NOT NULL,
  name     TEXT    NOT NULL,
  body     TEXT    NOT NULL,
  at       INTEGER NOT NULL
) STRICT;

CREATE TABLE sink (
  name     TEXT PRIMARY KEY,
  position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
