-- name: GetSession :one
SELECT * FROM sessions WHERE id = $1;

-- name: LockSession :one
SELECT * FROM sessions WHERE id = $1 FOR UPDATE;

-- name: InsertSession :one
INSERT INTO sessions (
  id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login,
  title, request, prompt, context_digest, base_branch, base_sha, environment_id, spec, spec_source,
  queue_reason, priority, created_at, state_at, deadline, next_check_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19, $20, $21)
RETURNING *;

-- name: SetSessionState :one
-- The one statement that changes a session's state: compare-and-set on the version.
UPDATE sessions SET
  state = sqlc.arg(state), reason = sqlc.arg(reason), words = sqlc.arg(words), queue_reason = sqlc.arg(queue_reason),
  version = version + 1, state_at = sqlc.arg(now), deadline = sqlc.arg(deadline), next_check_at = sqlc.arg(next_check_at),
  effect_tries = 0, report_tries = 0, report_after = NULL,
  started_at = COALESCE(started_at, sqlc.narg(started_at)),
  finished_at = sqlc.narg(finished_at)
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version) AND finished_at IS NULL
RETURNING *;

-- name: SetSessionPlacement :exec
UPDATE sessions SET generation = $2, snapshot_id = $3, node = $4 WHERE id = $1;

-- name: SetSessionOutcome :exec
UPDATE sessions SET outcome = $2 WHERE id = $1;

-- name: SetSessionReceipt :exec
UPDATE sessions SET receipt = $2, branch = $3, head_sha = $4, pull_request = $5 WHERE id = $1;

-- name: SetSessionNextCheck :exec
UPDATE sessions SET next_check_at = sqlc.arg(next_check_at)
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version);

-- name: WakeSession :exec
UPDATE sessions SET next_check_at = LEAST(next_check_at, sqlc.arg(at)) WHERE id = sqlc.arg(id);

-- name: SetSessionEffectTry :exec
UPDATE sessions SET effect_tries = effect_tries + 1, next_check_at = sqlc.arg(next_check_at)
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version);

-- name: SetQueueReason :exec
UPDATE sessions SET queue_reason = $2 WHERE id = $1 AND state = 'queued';

-- name: SetReportTried :exec
UPDATE sessions SET report_tries = report_tries + 1, report_after = sqlc.arg(after)::timestamptz
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version);

-- name: SetReported :exec
-- version is compared so that a report of an older state never counts as the last one.
UPDATE sessions SET report_tries = 0, report_after = NULL,
  reported_at = CASE WHEN finished_at IS NULL THEN NULL ELSE sqlc.arg(now)::timestamptz END
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version);

-- name: SetStopRequest :one
UPDATE sessions SET stop_at = sqlc.arg(now)::timestamptz, stop_by = sqlc.arg(who), stop_words = sqlc.arg(words),
  next_check_at = LEAST(next_check_at, sqlc.arg(now)::timestamptz)
WHERE id = sqlc.arg(id) AND finished_at IS NULL AND stop_at IS NULL
RETURNING *;

-- name: DueSessions :many
-- Sessions that want a look, claimed by moving the check ahead: a job that is
-- lost costs only that long.
UPDATE sessions SET next_check_at = sqlc.arg(claim_until)
WHERE id IN (
  SELECT s.id FROM sessions s
  WHERE s.reported_at IS NULL AND s.next_check_at <= sqlc.arg(now)
  ORDER BY s.next_check_at LIMIT sqlc.arg(at_most) FOR UPDATE SKIP LOCKED
)
RETURNING id;

-- name: QueuedSessions :many
SELECT * FROM sessions WHERE state = 'queued' AND stop_at IS NULL
ORDER BY priority DESC, created_at, id LIMIT $1;

-- name: ActiveByRepository :many
-- Sessions that hold a machine.
SELECT repository_id, count(*) AS active FROM sessions
WHERE state IN ('placing', 'restoring', 'working', 'verifying')
GROUP BY repository_id;

-- name: LockAdmission :exec
-- One transaction at a time decides who leaves the queue.
SELECT pg_advisory_xact_lock(5284718520010001);

-- name: InsertAttempt :exec
INSERT INTO attempts (session_id, generation, engine, node, snapshot_id, secret_hash, started_at, work_deadline, deadline, taken, fork)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: GetAttempt :one
SELECT * FROM attempts WHERE session_id = $1 AND generation = $2;

-- name: LockAttempt :one
SELECT * FROM attempts WHERE session_id = $1 AND generation = $2 FOR UPDATE;

-- name: SetAttemptRef :exec
UPDATE attempts SET engine_ref = $3 WHERE session_id = $1 AND generation = $2;

-- name: EndAttempt :exec
UPDATE attempts SET ended_at = sqlc.arg(now)::timestamptz, end_words = sqlc.arg(words), secret_hash = NULL
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation) AND ended_at IS NULL;

-- name: UnreapedAttempts :many
SELECT * FROM attempts WHERE ended_at IS NOT NULL AND reaped_at IS NULL
  AND (stopped_at IS NULL OR keep_until IS NULL OR keep_until <= sqlc.arg(now)::timestamptz)
ORDER BY ended_at LIMIT sqlc.arg(at_most);

-- name: SetAttemptReaped :execrows
UPDATE attempts SET reaped_at = sqlc.arg(now)::timestamptz
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation) AND reaped_at IS NULL
  AND (keep_until IS NULL OR keep_until <= sqlc.arg(now)::timestamptz);

-- name: InsertEvent :exec
INSERT INTO events (session_id, seq, generation, number, kind, data, at, hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: SetEventsHead :exec
UPDATE sessions SET events_count = $2, events_head = $3 WHERE id = $1;

-- name: EventsAfter :many
SELECT * FROM events WHERE session_id = $1 AND seq > $2 ORDER BY seq LIMIT $3;

-- name: InsertDirective :one
INSERT INTO directives (session_id, generation, kind, data, created_at) VALUES ($1, $2, $3, $4, $5) RETURNING id;

-- name: GetRepositoryRow :one
SELECT * FROM repositories WHERE id = $1;

-- name: UpsertEnvironment :one
INSERT INTO environments (id, repository_id, config_digest, spec, created_at, used_at)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (id) DO UPDATE SET used_at = EXCLUDED.used_at
RETURNING *;

-- name: EnvironmentSnapshots :many
-- Newest first.
SELECT * FROM snapshots WHERE environment_id = $1 ORDER BY created_at DESC, generation DESC, id LIMIT 64;

-- name: LastSnapshotGeneration :one
SELECT COALESCE(max(generation), 0)::integer FROM snapshots WHERE environment_id = $1 AND node = $2;

-- name: InsertSnapshot :exec
-- What it is made from may hold the values of secrets given out then.
INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, created_at, newest_at, from_id, cold, secrets)
VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, COALESCE((SELECT f.secrets FROM snapshots f WHERE f.id = $8), '{}'));

-- name: GetSnapshot :one
SELECT * FROM snapshots WHERE id = $1;

-- name: InsertWork :exec
INSERT INTO node_work (node, kind, key, data, created_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (key) DO NOTHING;

-- name: RepeatWork :exec
UPDATE node_work SET state = 'pending', attempts = 0, words = '', lease_until = NULL, done_at = NULL
WHERE key = $1 AND state IN ('done', 'failed');

-- name: GetWorkByKey :one
SELECT * FROM node_work WHERE key = $1;

-- name: Nodes :many
SELECT * FROM nodes ORDER BY name;

-- name: DueDeliveries :many
UPDATE deliveries SET next_try_at = sqlc.arg(claim_until)
WHERE guid IN (
  SELECT d.guid FROM deliveries d
  WHERE d.status = 'pending' AND d.next_try_at <= sqlc.arg(now)
  ORDER BY d.next_try_at LIMIT sqlc.arg(at_most) FOR UPDATE SKIP LOCKED
)
RETURNING guid;

-- name: BeginDelivery :one
-- A job takes a delivery up; the time of the next try is written before it is worked.
UPDATE deliveries SET tries = tries + 1, next_try_at = sqlc.arg(next_try_at)
WHERE guid = sqlc.arg(guid) AND status = 'pending' RETURNING *;

-- name: SetDeliveryNextTry :exec
UPDATE deliveries SET next_try_at = sqlc.arg(next_try_at) WHERE guid = sqlc.arg(guid) AND status = 'pending';

-- name: EndDelivery :exec
UPDATE deliveries SET status = sqlc.arg(status), note = sqlc.arg(note), handled_at = sqlc.arg(now)::timestamptz
WHERE guid = sqlc.arg(guid) AND status = 'pending';

-- name: PublishBegun :one
-- Whether anything of the session's result may be in the world already.
SELECT EXISTS (
  SELECT 1 FROM effects WHERE session_id = $1 AND (key LIKE '%/push' OR key LIKE '%/pull')
)::boolean;

-- name: SetSessionSpec :exec
-- The operator's policy was tightened since: less counts, never more.
UPDATE sessions SET spec = sqlc.arg(spec), budget = LEAST(budget, sqlc.arg(budget)::bigint) WHERE id = sqlc.arg(id);

-- name: GetEnvironment :one
SELECT * FROM environments WHERE id = $1;
