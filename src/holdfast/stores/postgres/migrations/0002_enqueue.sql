-- Enqueue from any language: one function, inside whatever transaction calls it. The kind's own retry policy is not known here, so it is an
-- argument; the payload is validated when the job runs.

-- A version 7 UUID: milliseconds, then the fraction of the millisecond, then chance; so ids made one after the other sort that way.
CREATE FUNCTION {schema}.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT (lpad(to_hex(clock.micros / 1000), 12, '0') || '7' || lpad(to_hex(clock.micros % 1000 * 4096 / 1000), 3, '0')
          || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
  FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros) AS clock
$$;

CREATE FUNCTION {schema}.enqueue(
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
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 255 OR name ~ '[[:cntrl:]]' THEN
      RAISE EXCEPTION 'kind, queue, key, tenant, user and trace_id are texts of 1 to 255 printable characters; nothing was enqueued'
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
  END LOOP;
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
