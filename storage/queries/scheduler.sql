-- name: GetSession :one
SELECT * FROM sessions WHERE id = $1;

-- name: LockSession :one
SELECT * FROM sessions WHERE id = $1 FOR UPDATE;

-- name: InsertSession :one
INSERT INTO sessions (
  id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login,
  title, request, prompt, context_digest, base_branch, base_sha, environment_id, spec, spec_source,
  queue_reason, priority, created_at, state_at, queue_at, waiting_since, deadline, next_check_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19, $19, $19, $20, $21)
RETURNING *;

-- name: SetSessionState :one
-- The one statement that changes a session's state: compare-and-set on the version.
UPDATE sessions SET
  state = sqlc.arg(state), reason = sqlc.arg(reason), words = sqlc.arg(words), queue_reason = sqlc.arg(queue_reason),
  version = version + 1, state_at = sqlc.arg(now), deadline = sqlc.arg(deadline), next_check_at = sqlc.arg(next_check_at),
  queue_at = CASE sqlc.arg(queue_reason)::text WHEN '' THEN NULL ELSE sqlc.arg(now)::timestamptz END, queue_position = 0,
  waiting_since = CASE WHEN sqlc.arg(waits_anew)::boolean THEN sqlc.arg(now)::timestamptz ELSE waiting_since END,
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
-- Since when it waits is told of the kind of reason: counters in it do not count.
UPDATE sessions SET queue_reason = sqlc.arg(queue_reason),
  queue_at = CASE WHEN sqlc.arg(same_kind)::boolean THEN COALESCE(queue_at, sqlc.arg(now)::timestamptz) ELSE sqlc.arg(now)::timestamptz END
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version) AND state = 'queued';

-- name: SetQueuePositions :exec
-- In the order of the ids, from 1.
UPDATE sessions s SET queue_position = u.position
FROM jsonb_array_elements_text(sqlc.arg(ids)::jsonb) WITH ORDINALITY AS u (id, position)
WHERE s.id = u.id AND s.state = 'queued' AND s.queue_position <> u.position;

-- name: QueueLength :one
SELECT count(*)::integer FROM sessions WHERE state = 'queued' AND stop_at IS NULL;

-- name: SlotsWaitedFor :one
-- Whether sessions wait while fewer than that many hold a machine.
SELECT (EXISTS (SELECT 1 FROM sessions w WHERE w.state = 'queued' AND w.stop_at IS NULL) AND (
  SELECT count(*) FROM sessions s WHERE s.state IN ('placing', 'restoring', 'working', 'verifying')
    AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.session_id = s.id AND a.generation = s.generation AND a.hopeless AND a.heartbeat_at IS NULL)
) < sqlc.arg(slots)::bigint)::boolean;

-- name: SetPlacingWait :exec
-- What an attempt that was placed waits for; empty: nothing any more.
UPDATE sessions SET queue_reason = sqlc.arg(queue_reason), deadline = sqlc.arg(deadline), next_check_at = sqlc.arg(next_check_at),
  effect_tries = CASE WHEN sqlc.arg(failed)::boolean THEN effect_tries + 1 ELSE 0 END,
  queue_at = CASE WHEN sqlc.arg(queue_reason)::text = '' THEN NULL WHEN sqlc.arg(same_kind)::boolean THEN COALESCE(queue_at, sqlc.arg(now)::timestamptz)
    ELSE sqlc.arg(now)::timestamptz END
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version) AND state = 'placing';

-- name: SetAttemptWait :exec
UPDATE attempts SET work_deadline = sqlc.arg(work_deadline), deadline = sqlc.arg(deadline), hopeless = sqlc.arg(hopeless)
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation) AND heartbeat_at IS NULL;

-- name: LiveAttempts :many
-- Attempts whose end no engine has confirmed: they hold room on their node.
SELECT a.node, s.spec FROM attempts a JOIN sessions s ON s.id = a.session_id
WHERE a.reaped_at IS NULL AND a.stopped_at IS NULL AND NOT (a.hopeless AND a.heartbeat_at IS NULL);

-- name: MissingAttempts :many
-- Attempts since a rewind that found no snapshot where they ran.
SELECT a.generation, a.node, a.snapshot_id, (n.node IS NOT DISTINCT FROM a.node)::boolean AS lost
FROM attempts a LEFT JOIN snapshots n ON n.id = a.snapshot_id
WHERE a.session_id = sqlc.arg(session_id) AND a.generation > sqlc.arg(rewound)::integer
  AND a.outcome->>'kind' = 'infrastructure' AND a.outcome->>'reason' = 'snapshot_missing';

-- name: OpenPullRequests :one
-- Of a repository, of sessions that were delivered and whose end is not known;
-- requester_id 0: whoever asked for them.
SELECT count(DISTINCT pull_request)::integer FROM sessions
WHERE repository_id = sqlc.arg(repository_id) AND state = 'delivered' AND pull_request > 0 AND pull_closed_at IS NULL
  AND sqlc.arg(requester_id)::bigint IN (0, requester_id);

-- name: SetPullRequestClosed :exec
UPDATE sessions SET pull_closed_at = sqlc.narg(closed_at)
WHERE repository_id = sqlc.arg(repository_id) AND pull_request = sqlc.arg(pull_request)::integer;

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
SELECT s.repository_id, lower(r.owner)::text AS owner, s.installation_id, count(*) AS active
FROM sessions s JOIN repositories r ON r.id = s.repository_id
WHERE s.state IN ('placing', 'restoring', 'working', 'verifying')
  AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.session_id = s.id AND a.generation = s.generation AND a.hopeless AND a.heartbeat_at IS NULL)
GROUP BY s.repository_id, lower(r.owner), s.installation_id;

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

-- name: InsertEvents :exec
-- As a list of objects, hash in hexadecimal. A null of JSON is a value like others.
INSERT INTO events (session_id, seq, generation, number, kind, data, at, hash)
SELECT sqlc.arg(session_id), e.seq, e.generation, e.number, e.kind, COALESCE(e.data, 'null'), e.at, decode(e.hash, 'hex')
FROM jsonb_to_recordset(sqlc.arg(events)::jsonb) AS e (seq bigint, generation integer, number bigint, kind text, data jsonb, at timestamptz, hash text)
ORDER BY e.seq;

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
INSERT INTO node_work (node, kind, key, data, created_at, lease_until) VALUES ($1, $2, $3, $4, $5, sqlc.narg(not_before))
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
