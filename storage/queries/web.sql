-- What people's pages read. Nothing here writes.

-- name: WebSessions :many
-- The list of sessions, newest first, before a moment and id (or from the newest).
SELECT s.id, s.state, s.reason, s.title, s.issue_number, s.requester_login, s.queue_reason, s.queue_at, s.queue_position, s.priority,
  s.pull_request, s.created_at, s.finished_at, s.repository_id, r.installation_id, r.owner, r.name
FROM sessions s JOIN repositories r ON r.id = s.repository_id
WHERE (s.created_at, s.id) < (sqlc.arg(before)::timestamptz, sqlc.arg(before_id)::text)
  AND (sqlc.arg(repository)::text = '' OR lower(r.owner || '/' || r.name) = lower(sqlc.arg(repository)))
  AND (sqlc.arg(state)::text = '' OR s.state::text = sqlc.arg(state))
  AND (sqlc.arg(requester)::text = '' OR lower(s.requester_login) = lower(sqlc.arg(requester)))
ORDER BY s.created_at DESC, s.id DESC
LIMIT sqlc.arg(at_most);

-- name: WebSession :one
SELECT * FROM sessions WHERE id = $1;

-- name: WebRepository :one
SELECT * FROM repositories WHERE id = $1;

-- name: WebAttempts :many
SELECT generation, engine, node, snapshot_id, started_at, ended_at, end_words, restore, taken, drifted, keep_until, reaped_at
FROM attempts WHERE session_id = $1 ORDER BY generation;

-- name: WebSnapshot :one
SELECT * FROM snapshots WHERE id = $1;

-- name: WebEventsAfter :many
-- The first events after a number, in order.
SELECT seq, generation, kind, data, at FROM events
WHERE session_id = sqlc.arg(session_id) AND seq > sqlc.arg(after)::bigint
ORDER BY seq LIMIT sqlc.arg(at_most);

-- name: WebEvents :many
-- The last events before a number, in order.
SELECT e.seq, e.generation, e.kind, e.data, e.at FROM (
  SELECT * FROM events
  WHERE session_id = sqlc.arg(session_id) AND seq < sqlc.arg(before)::bigint
  ORDER BY seq DESC LIMIT sqlc.arg(at_most)
) e ORDER BY e.seq;

-- name: WebEvidence :many
SELECT * FROM evidence WHERE session_id = $1 ORDER BY name;

-- name: WebArtifact :one
-- Whether a session has a file of that digest that may be shown, and how long it
-- is. A bundle may as evidence. withheld: not all of it was looked through for
-- secrets, so that only people who may write are shown it.
SELECT f.bytes, EXISTS (
  SELECT 1 FROM evidence u WHERE u.session_id = sqlc.arg(session_id) AND u.sha256 = sqlc.arg(sha256) AND u.name = 'unsearched.bundle'
)::boolean AS withheld FROM (
  SELECT a.bytes FROM artifacts a WHERE a.session_id = sqlc.arg(session_id) AND a.sha256 = sqlc.arg(sha256)
  UNION ALL
  SELECT e.bytes FROM evidence e WHERE e.session_id = sqlc.arg(session_id) AND e.sha256 = sqlc.arg(sha256)
) f LIMIT 1;

-- name: WebEnvironments :many
-- The newest snapshot of each environment, whatever became of it.
SELECT DISTINCT ON (n.environment_id) n.environment_id, n.id, n.state, n.commit_sha, n.error, n.phases,
  n.created_at, n.published_at, e.repository_id, r.installation_id, r.owner, r.name
FROM snapshots n JOIN environments e ON e.id = n.environment_id JOIN repositories r ON r.id = e.repository_id
ORDER BY n.environment_id, n.created_at DESC, n.generation DESC;

-- name: WebArtifactSizes :many
SELECT sha256, bytes FROM artifacts WHERE session_id = $1 ORDER BY created_at LIMIT 1000;
