-- What `inspect env` shows and prunes.

-- name: StatusEnvironments :many
SELECT e.id, e.used_at, e.spec, r.id AS repository_id, r.owner, r.name, r.default_branch, r.head_sha, (r.head_environment = e.id)::boolean AS is_head,
  r.head_words, r.looked_at, r.look_at, r.look_tries, r.look_error
FROM environments e JOIN repositories r ON r.id = e.repository_id
WHERE r.removed_at IS NULL
ORDER BY lower(r.owner), lower(r.name), e.used_at DESC, e.id;

-- name: StatusSnapshots :many
-- Those that are there or being made.
SELECT * FROM snapshots WHERE state IN ('building', 'ready') ORDER BY environment_id, node, generation DESC;

-- name: StatusNodes :many
SELECT * FROM environment_nodes ORDER BY environment_id, node;

-- name: StatusTaken :many
-- The newest attempt of each environment.
SELECT DISTINCT ON (s.environment_id) s.environment_id, a.session_id, a.generation, a.started_at, a.taken, a.drifted, a.restore, a.outcome
FROM attempts a JOIN sessions s ON s.id = a.session_id WHERE a.taken IS NOT NULL
ORDER BY s.environment_id, a.started_at DESC;

-- name: StatusTakenOf :many
-- The attempts of a session.
SELECT generation, taken, drifted, restore, outcome FROM attempts WHERE session_id = $1 AND taken IS NOT NULL ORDER BY generation;

-- name: StatusAttempts :many
-- Whose clones are not to be discarded yet.
SELECT a.session_id, a.generation, a.node, a.snapshot_id, a.keep_until, s.state, s.finished_at, s.environment_id, r.owner, r.name
FROM attempts a JOIN sessions s ON s.id = a.session_id JOIN repositories r ON r.id = s.repository_id
WHERE a.reaped_at IS NULL ORDER BY a.session_id, a.generation;

-- name: StatusRefresh :one
-- Where a refresh that was asked for stands.
SELECT r.head_sha, r.head_environment, r.head_words, r.looked_at, r.look_tries, r.look_error, r.build, (
  SELECT count(*) FROM snapshots n WHERE n.environment_id = r.head_environment AND n.state = 'building' AND NOT n.cold
) AS building, (
  SELECT count(*) FROM environment_nodes n WHERE n.environment_id = r.head_environment AND n.wanted_commit <> ''
) AS wanted
FROM repositories r WHERE r.id = $1;

-- name: PruneEnvironment :many
UPDATE snapshots SET state = 'retired', is_current = false, error = 'it was pruned'
WHERE environment_id = $1 AND state = 'ready' RETURNING id;

-- name: UnscheduleLook :exec
-- Until a session starts there or somebody asks.
UPDATE repositories SET look_at = NULL WHERE id = $1;
