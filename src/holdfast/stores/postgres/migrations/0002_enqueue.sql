-- Enqueue from any language: one function, inside whatever transaction calls it. The kind's own retry policy is not known here, so it is an
-- argument; the payload is validated when the job runs.

CREATE FUNCTION {schema}.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT (lpad(to_hex(({schema}.micros() / 1000)), 12, '0') || '7' || substr(random.text, 14, 3) || substr(random.text, 17))::uuid
  FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS text) AS random
$$;

CREATE FUNCTION {schema}.enqueue(
  kind text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default', key text DEFAULT NULL, tenant text DEFAULT '',
  priority integer DEFAULT 0, run_after interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT 5,
  retry text DEFAULT 'exponential:2000000:0.1:31536000000000', "user" text DEFAULT NULL, trace_id text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  now bigint := {schema}.micros();
  job_id uuid := {schema}.new_id();
  due bigint := now;
  owner uuid;
  known text;
BEGIN
  IF coalesce(kind, '') = '' OR length(kind) > 255 OR coalesce(queue, '') = '' OR length(queue) > 255 OR length(key) > 255 OR key = '' THEN
    RAISE EXCEPTION 'kind, queue and key are texts of 1 to 255 characters' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF payload IS NULL OR jsonb_typeof(payload) <> 'object' OR octet_length(payload::text) > 262144 THEN
    RAISE EXCEPTION 'the payload must be a JSON object of at most 256 KiB' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF abs(priority) > 1000000 OR max_attempts < 1 OR run_after < interval '0' OR (run_after IS NOT NULL AND run_at IS NOT NULL) THEN
    RAISE EXCEPTION 'priority is within a million of 0, max_attempts at least 1, run_after not negative, and not beside run_at'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  due := coalesce((extract(epoch FROM run_at) * 1000000)::bigint, now + coalesce((extract(epoch FROM run_after) * 1000000)::bigint, 0));
  IF key IS NOT NULL THEN
    INSERT INTO {schema}.job_key AS held VALUES (coalesce(tenant, ''), key, job_id, NULL)
    ON CONFLICT ON CONSTRAINT job_key_pkey DO UPDATE SET job_id = excluded.job_id, expires_at = NULL WHERE held.expires_at <= now;
    SELECT held.job_id INTO owner FROM {schema}.job_key AS held WHERE held.tenant = coalesce(enqueue.tenant, '') AND held.key = enqueue.key;
    IF owner <> job_id THEN
      SELECT job.payload INTO known FROM {schema}.job AS job WHERE job.id = owner AND job.kind = enqueue.kind;
      IF known IS NULL OR known::jsonb <> payload THEN
        RAISE EXCEPTION 'the key % already belongs to job % with another payload; nothing was enqueued', key, owner
          USING ERRCODE = 'unique_violation';
      END IF;
      RETURN owner;
    END IF;
  END IF;
  INSERT INTO {schema}.job VALUES (job_id, kind, queue, coalesce(tenant, ''), "user", priority, payload::text, retry, max_attempts, 3, 'manual',
                                   trace_id, key, now, 0, due);
  INSERT INTO {schema}.waiting VALUES (queue, -priority::bigint, due, job_id, NULL, NULL);
  INSERT INTO {schema}.tally VALUES (queue, 'queued', 1);
  RETURN job_id;
END $$;
