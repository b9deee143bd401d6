-- Jobs, their keys, ended attempts, recorded steps, counters, queues, workers and roles.
-- Times are microseconds since 1970. The first 39 columns of `job` are those of JobRecord, in its order.

CREATE TABLE job (
  seq               INTEGER PRIMARY KEY,
  id                TEXT    NOT NULL UNIQUE,
  kind              TEXT    NOT NULL,
  queue             TEXT    NOT NULL,
  tenant            TEXT    NOT NULL,
  user              TEXT,
  priority          INTEGER NOT NULL,
  payload           TEXT    NOT NULL,
  retry             TEXT    NOT NULL,
  max_attempts      INTEGER NOT NULL,
  crash_cap         INTEGER NOT NULL,
  trigger           TEXT    NOT NULL,
  trace_id          TEXT,
  key               TEXT,
  created_at        INTEGER NOT NULL,
  expires_at        INTEGER,
  steps_total       INTEGER NOT NULL,
  state             TEXT    NOT NULL,
  version           INTEGER NOT NULL DEFAULT 1,
  generation        INTEGER NOT NULL DEFAULT 1,
  attempt           INTEGER NOT NULL DEFAULT 0 CHECK (attempt BETWEEN 0 AND max_attempts),
  crashes           INTEGER NOT NULL DEFAULT 0,
  available_at      INTEGER NOT NULL,
  token             INTEGER NOT NULL DEFAULT 0,
  lease_id          TEXT,
  lease_owner       TEXT,
  lease_expires_at  INTEGER,
  claimed_at        INTEGER,
  begun_at          INTEGER,
  started_at        INTEGER,
  finished_at       INTEGER,
  updated_at        INTEGER NOT NULL,
  purge_at          INTEGER,
  cause             TEXT,
  failure_code      TEXT,
  failure_message   TEXT,
  failure_retryable INTEGER,
  cancel_requested  INTEGER NOT NULL DEFAULT 0,
  step_cursor       INTEGER NOT NULL DEFAULT 0,
  result            TEXT,
  ready             INTEGER  -- 1: claimable and due; 0: claimable, not yet promoted; NULL: not claimable
) STRICT;

-- The order of this index is the order of a claim, and it holds due jobs only: no backlog or history can slow it.
CREATE INDEX job_ready ON job (queue, priority DESC, available_at, seq) WHERE ready = 1;
CREATE INDEX job_scheduled ON job (queue, available_at) WHERE ready = 0;
CREATE INDEX job_leased ON job (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX job_expiring ON job (expires_at) WHERE expires_at IS NOT NULL AND ready IS NOT NULL;
CREATE INDEX job_dead ON job (id) WHERE state = 'dead';
CREATE INDEX job_purge ON job (purge_at) WHERE purge_at IS NOT NULL;

-- Terminal is final for every statement, also one typed by hand; the one exit is a new generation of a dead job.
CREATE TRIGGER job_terminal_is_final BEFORE UPDATE ON job
WHEN OLD.state IN ('succeeded', 'cancelled')
  OR (OLD.state = 'dead' AND NOT (NEW.state = 'queued' AND NEW.generation = OLD.generation + 1 AND NEW.version = OLD.version + 1))
BEGIN
  SELECT RAISE(ABORT, 'a finished job is final: its row cannot be changed');
END;

CREATE TRIGGER job_envelope_is_fixed BEFORE UPDATE OF
  seq, id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at, steps_total
ON job BEGIN
  SELECT RAISE(ABORT, 'what a job was asked to do cannot be changed');
END;

-- A job leaves only by purge, which says first up to when it may remove.
CREATE TRIGGER job_is_kept BEFORE DELETE ON job
WHEN OLD.purge_at IS NULL OR OLD.purge_at > coalesce((SELECT purge_before FROM permit), 0)
BEGIN
  SELECT RAISE(ABORT, 'a job is kept until its retention is over');
END;

CREATE TABLE permit (purge_before INTEGER) STRICT;
INSERT INTO permit VALUES (NULL);

CREATE TABLE job_key (
  tenant     TEXT    NOT NULL,
  key        TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  expires_at INTEGER,
  PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt (
  seq        INTEGER NOT NULL,
  token      INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  owner      TEXT,
  claimed_at INTEGER,
  ended_at   INTEGER,
  outcome    TEXT    NOT NULL,
  code       TEXT,
  message    TEXT,
  traceback  TEXT,
  PRIMARY KEY (seq, token)
) STRICT, WITHOUT ROWID;

CREATE TABLE step (
  seq         INTEGER NOT NULL,
  position    INTEGER NOT NULL,
  name        TEXT    NOT NULL,
  result      TEXT,
  recorded_at INTEGER NOT NULL,
  PRIMARY KEY (seq, position),
  UNIQUE (seq, name)
) STRICT, WITHOUT ROWID;

-- Counters, changed in the same transaction as the jobs they count.
CREATE TABLE tally (
  queue TEXT    NOT NULL,
  state TEXT    NOT NULL,
  jobs  INTEGER NOT NULL,
  PRIMARY KEY (queue, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE paused_queue (queue TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
  id         TEXT PRIMARY KEY,
  record     TEXT    NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE role (
  name       TEXT PRIMARY KEY,
  owner      TEXT    NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
