-- A job enqueued by plain SQL is named as Python would let it be: no character that cannot be printed, no queue by the name that stands for
-- all of them, and no time for a key that is not there.

-- Whether Python would take this as a name. Regular expressions know control characters by the locale, and some locales know only those of
-- ASCII; so what cannot be printed is listed: controls, formats, private use, and all spaces but the common one. Where the encoding is
-- SQL_ASCII a text is bytes, of which only those of ASCII can be judged.
CREATE OR REPLACE FUNCTION {schema}.is_name(name text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT length(name) BETWEEN 1 AND 255 AND name !~ '[\u0001-\u001F\u007F]' AND (
    current_setting('server_encoding') <> 'UTF8' OR name !~ (
      '[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u1680\u180E'
      '\u2000-\u200F\u2028-\u202F\u205F-\u2064\u2066-\u206F\u3000\uE000-\uF8FF\uFEFF\uFFF9-\uFFFB\U000110BD'
      '\U000110CD\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001'
      '\U000E0020-\U000E007F\U000F0000-\U000FFFFD\U00100000-\U0010FFFD]'
    )
  )
$$;

CREATE OR REPLACE FUNCTION {schema}.enqueue(
  kind text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default', key text DEFAULT NULL, tenant text DEFAULT '',
  priority integer DEFAULT 0, run_after interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT 5,
  retry text DEFAULT 'exponential:2000000:0.1:31536000000000', "user" text DEFAULT NULL, trace_id text DEFAULT NULL,
  key_ttl interval DEFAULT NULL, expires_after interval DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  now bigint := {schema}.micros();
  job_id uuid := {schema}.new_id();
  due bigint;
  owner uuid;
  known text;
  name text;
BEGIN
  queue := coalesce(queue, 'default');
  tenant := coalesce(tenant, '');
  priority := coalesce(priority, 0);
  max_attempts := coalesce(max_attempts, 5);
  retry := coalesce(retry, 'exponential:2000000:0.1:31536000000000');
  FOREACH name IN ARRAY ARRAY[
    kind, queue, coalesce(key, 'none'), coalesce(nullif(tenant, ''), 'none'), coalesce("user", 'none'), coalesce(trace_id, 'none')
  ] LOOP
    IF {schema}.is_name(name) IS NOT TRUE THEN
      RAISE EXCEPTION 'kind, queue, key, tenant, user and trace_id are texts of 1 to 255 printable characters; nothing was enqueued'
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
  END LOOP;
  IF queue = '*' THEN
    RAISE EXCEPTION 'a queue is not named *, which stands for all queues; nothing was enqueued' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF key IS NULL AND key_ttl IS NOT NULL THEN
    RAISE EXCEPTION 'key_ttl says how long a key is taken; give the key as well; nothing was enqueued'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF payload IS NULL OR jsonb_typeof(payload) <> 'object' OR octet_length(payload::text) > 262144 THEN
    RAISE EXCEPTION 'the payload must be a JSON object of at most 256 KiB; nothing was enqueued' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF priority NOT BETWEEN -1000000 AND 1000000 OR max_attempts NOT BETWEEN 1 AND 10000 THEN
    RAISE EXCEPTION 'priority is within a million of 0, and max_attempts from 1 to 10000; nothing was enqueued'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF run_after IS NOT NULL AND run_at IS NOT NULL THEN
    RAISE EXCEPTION 'run_after and run_at both say when the job may run; give one of them; nothing was enqueued'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF run_at NOT BETWEEN '0001-01-02' AND '9999-12-30' OR run_after NOT BETWEEN '0' AND '100 years' OR key_ttl NOT BETWEEN '0' AND '100 years'
    OR expires_after NOT BETWEEN '0' AND '100 years' THEN
    RAISE EXCEPTION 'run_after, key_ttl and expires_after are from 0 to a hundred years, and run_at before the year 9999; nothing was enqueued'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- As Python's Retry.spec writes it, because a worker must be able to read it.
  IF retry !~ '^(table|exponential|fixed):[0-9]{1,14}(,[0-9]{1,14})*:([01](\.[0-9]{1,17})?|[1-9](\.[0-9]{1,17})?e-[0-9]{2}):[0-9]{1,14}$' THEN
    RAISE EXCEPTION 'retry is SHAPE:MICROSECONDS[,...]:JITTER:LONGEST, like exponential:2000000:0.1:31536000000000; nothing was enqueued'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  due := (extract(epoch FROM coalesce(run_at, statement_timestamp() + coalesce(run_after, '0'))) * 1000000)::bigint;
  IF key IS NOT NULL THEN
    INSERT INTO {schema}.job_key AS held (tenant, key, job_id, expires_at)
    VALUES (tenant, key, job_id, now + (extract(epoch FROM key_ttl) * 1000000)::bigint)
    ON CONFLICT ON CONSTRAINT job_key_pkey DO UPDATE SET job_id = excluded.job_id, expires_at = excluded.expires_at
      WHERE held.expires_at <= now;
    SELECT held.job_id INTO owner FROM {schema}.job_key AS held WHERE held.tenant = enqueue.tenant AND held.key = enqueue.key;
    IF owner <> job_id THEN
      SELECT job.payload INTO known FROM {schema}.job AS job WHERE job.id = owner AND job.kind = enqueue.kind;
      IF known IS NULL OR known::jsonb <> payload THEN
        RAISE EXCEPTION 'the key % already belongs to job % with another kind or payload; nothing was enqueued', key, owner
          USING ERRCODE = 'unique_violation';
      END IF;
      RETURN owner;
    END IF;
  END IF;
  INSERT INTO {schema}.job (id, kind, queue, tenant, "user", priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                            steps_total, due_at)
  VALUES (job_id, kind, queue, tenant, "user", priority, payload::text, retry, max_attempts, 3, 'manual', trace_id, key, now, 0, due);
  INSERT INTO {schema}.waiting (queue, rank, available_at, job_id, expires_at)
  VALUES (queue, -priority::bigint, due, job_id, greatest(due, now) + (extract(epoch FROM expires_after) * 1000000)::bigint);
  INSERT INTO {schema}.tally (queue, state, jobs) VALUES (queue, 'queued', 1);
  RETURN job_id;
END $$;
