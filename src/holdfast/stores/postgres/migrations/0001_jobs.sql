-- Jobs, their keys, ended attempts, recorded steps, counters, queues, workers and roles. Times are microseconds since 1970.
--
-- What a job was asked to do lies in `job` and never changes. Where it stands lies in exactly one of `created`, `waiting`, `running` and
-- `outcome`: a move deletes one narrow row and inserts another, so that history never lies among the rows a claim looks at.

CREATE FUNCTION {schema}.micros() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint $$;

CREATE TABLE {schema}.job (
  id           uuid    PRIMARY KEY,
  kind         text    NOT NULL,
  queue        text    NOT NULL COLLATE "C",
  tenant       text    NOT NULL COLLATE "C",
  "user"       text,
  priority     integer NOT NULL,
  payload      text    NOT NULL,
  retry        text    NOT NULL,
  max_attempts integer NOT NULL,
  crash_cap    integer NOT NULL,
  trigger      text    NOT NULL,
  trace_id     text,
  key          text    COLLATE "C",
  created_at   bigint  NOT NULL,
  steps_total  integer NOT NULL,
  due_at       bigint  NOT NULL  -- when it may first start; with queue and priority it leads to the row in `waiting`
);
CREATE INDEX job_key_history ON {schema}.job (key) WHERE key IS NOT NULL;

-- Each table has one index that a look-up by id can use, and the others say a condition that only their own query says. These tables are
-- empty when their statistics are taken as often as not, and to a planner that believes so every index is as good as another.

-- What a job that waits has been through. A job that was never touched has none.
CREATE TYPE {schema}.past AS (
  state text, version integer, generation integer, attempt integer, crashes integer, token integer, lease_id text, lease_owner text,
  claimed_at bigint, begun_at bigint, started_at bigint, updated_at bigint,
  failure_code text, failure_message text, failure_retryable boolean, step_cursor integer
);

CREATE TABLE {schema}.created (
  job_id       uuid   PRIMARY KEY,
  available_at bigint NOT NULL,
  expires_at   bigint
);

-- Queued and retrying jobs, due or not. A claim reads each lane (queue and rank) from its first row, or from the mark where it
-- stopped before, up to now; `rank` is the priority with its sign turned, so that the index grows in the order of a claim.
CREATE TABLE {schema}.waiting (
  queue        text    NOT NULL COLLATE "C",
  rank         bigint  NOT NULL,
  available_at bigint  NOT NULL,
  job_id       uuid    NOT NULL,
  expires_at   bigint,
  past         {schema}.past
);
CREATE INDEX waiting_order ON {schema}.waiting (queue, rank, available_at, job_id);
-- An untouched job is found through what `job` says of it, so that storing one costs one index and not two.
CREATE UNIQUE INDEX waiting_touched ON {schema}.waiting (job_id) WHERE (past).version IS NOT NULL;
CREATE INDEX waiting_expiring ON {schema}.waiting (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {schema}.running (
  job_id            uuid    PRIMARY KEY,
  queue             text    NOT NULL COLLATE "C",
  version           integer NOT NULL,
  generation        integer NOT NULL,
  attempt           integer NOT NULL,
  crashes           integer NOT NULL,
  available_at      bigint  NOT NULL,
  token             integer NOT NULL,
  lease_id          text    NOT NULL,
  lease_owner       text    NOT NULL,
  lease_expires_at  bigint  NOT NULL,
  claimed_at        bigint  NOT NULL,
  begun_at          bigint,
  started_at        bigint  NOT NULL,
  updated_at        bigint  NOT NULL,
  expires_at        bigint,
  failure_code      text,
  failure_message   text,
  failure_retryable boolean,
  cancel_requested  boolean NOT NULL DEFAULT false,
  step_cursor       integer NOT NULL
);
CREATE INDEX running_leases ON {schema}.running (lease_expires_at) WHERE lease_expires_at > 0;

CREATE TABLE {schema}.outcome (
  job_id            uuid    PRIMARY KEY,
  state             text    NOT NULL,
  version           integer NOT NULL,
  generation        integer NOT NULL,
  attempt           integer NOT NULL,
  crashes           integer NOT NULL,
  available_at      bigint  NOT NULL,
  token             integer NOT NULL,
  lease_id          text,
  lease_owner       text,
  claimed_at        bigint,
  begun_at          bigint,
  started_at        bigint,
  finished_at       bigint  NOT NULL,
  purge_at          bigint  NOT NULL,
  expires_at        bigint,
  cause             text,
  failure_code      text,
  failure_message   text,
  failure_retryable boolean,
  cancel_requested  boolean NOT NULL DEFAULT false,
  step_cursor       integer NOT NULL,
  result            text
);
CREATE INDEX outcome_purge ON {schema}.outcome (purge_at) WHERE purge_at > 0;
CREATE INDEX outcome_dead ON {schema}.outcome (job_id) WHERE state = 'dead';

-- Terminal is final, and so is what a job was asked to do, for every statement, also one typed by hand.
CREATE FUNCTION {schema}.is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a finished job is final, and what a job was asked to do cannot be changed';
END $$;
CREATE TRIGGER outcome_is_final BEFORE UPDATE ON {schema}.outcome FOR EACH STATEMENT EXECUTE FUNCTION {schema}.is_final();
CREATE TRIGGER job_is_fixed BEFORE UPDATE ON {schema}.job FOR EACH STATEMENT EXECUTE FUNCTION {schema}.is_final();

CREATE TABLE {schema}.job_key (
  tenant     text NOT NULL COLLATE "C",
  key        text NOT NULL COLLATE "C",
  job_id     uuid NOT NULL,
  expires_at bigint,
  PRIMARY KEY (tenant, key)
);

CREATE TABLE {schema}.attempt (
  job_id     uuid    NOT NULL,
  token      integer NOT NULL,
  generation integer NOT NULL,
  attempt    integer NOT NULL,
  owner      text,
  claimed_at bigint,
  ended_at   bigint,
  outcome    text    NOT NULL,
  code       text,
  message    text,
  traceback  text,
  PRIMARY KEY (job_id, token)
);

CREATE TABLE {schema}.step (
  job_id      uuid    NOT NULL,
  position    integer NOT NULL,
  name        text    NOT NULL,
  result      text,
  recorded_at bigint  NOT NULL,
  PRIMARY KEY (job_id, name)
);

-- Counters: every transaction adds what it changed, upkeep folds the rows together, and the sum is exact at any moment.
CREATE TABLE {schema}.tally (
  queue text   NOT NULL COLLATE "C",
  state text   NOT NULL,
  jobs  bigint NOT NULL
);

CREATE TABLE {schema}.paused_queue (queue text PRIMARY KEY COLLATE "C");

CREATE TABLE {schema}.worker (
  id         text   PRIMARY KEY,
  record     text   NOT NULL,
  expires_at bigint NOT NULL
);

CREATE TABLE {schema}.role (
  name       text   PRIMARY KEY,
  owner      text   NOT NULL,
  expires_at bigint NOT NULL
);

-- Rows come and go here by the thousand a second: vacuum early, and at full speed.
ALTER TABLE {schema}.waiting SET (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.running SET (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.tally SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
