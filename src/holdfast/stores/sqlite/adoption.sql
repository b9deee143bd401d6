-- name: key_until
SELECT expires_at FROM job_key
WHERE seq = (SELECT seq FROM job WHERE id = ?1) AND tenant = ?2 AND key = ?3 AND (expires_at IS NULL OR expires_at > ?4)

-- name: adopt
-- All that a record holds, as it is.
INSERT INTO job (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, trace_id, key, created_at,
                 expires_at, steps_total, state, version, generation, attempt, crashes, available_at, token, lease_id, lease_owner,
                 lease_expires_at, claimed_at, begun_at, started_at, finished_at, updated_at, purge_at, cause, failure_code, failure_message,
                 failure_retryable, cancel_requested, step_cursor, result, parent, code_version, flow, ready)
VALUES (:id, :kind, :queue, :tenant, :user, :priority, :payload, :retry, :max_attempts, :crash_cap, :trigger, :trace_id, :key, :created_at,
        :expires_at, :steps_total, :state, :version, :generation, :attempt, :crashes, :available_at, :token, :lease_id, :lease_owner,
        :lease_expires_at, :claimed_at, :begun_at, :started_at, :finished_at, :updated_at, :purge_at, :cause, :failure_code, :failure_message,
        :failure_retryable, :cancel_requested, :step_cursor, :result, :parent, :code_version, :flow, :ready)

-- name: adopt_signal
-- Like steps that a job starts out with, they stand before all that come here.
INSERT INTO signal SELECT seq, ?2, ?3, ?4, ?5, ?6 FROM job WHERE id = ?1

-- name: remains
-- What is left of a job that went away, to be removed when it comes back.
SELECT json_array(seq) FROM job WHERE id = ?1
