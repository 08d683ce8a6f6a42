-- name: SetAttemptToken :exec
UPDATE attempts SET token_hash = sqlc.arg(token_hash), token_expires = sqlc.arg(token_expires)::timestamptz,
  token_issued = sqlc.arg(now)::timestamptz,
  prev_token_hash = sqlc.narg(prev_token_hash), prev_token_expires = sqlc.narg(prev_token_expires),
  heartbeat_at = sqlc.arg(now)::timestamptz
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation);

-- name: SetAttemptAllocation :exec
-- The caller holds the row's lock; a second allocation finds it set.
UPDATE attempts SET allocation = $3 WHERE session_id = $1 AND generation = $2 AND allocation = '';

-- name: SetAttemptNode :exec
UPDATE attempts SET node = $3, snapshot_id = $4, taken = $5, fork = NULL WHERE session_id = $1 AND generation = $2;

-- name: ClearAttemptSecret :exec
UPDATE attempts SET secret_hash = NULL WHERE session_id = $1 AND generation = $2 AND secret_hash IS NOT NULL;

-- name: SetHeartbeat :exec
UPDATE attempts SET heartbeat_at = sqlc.arg(now)::timestamptz
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation);

-- name: SetAttemptAcked :exec
UPDATE attempts SET acked = $3, dropped = $4, heartbeat_at = sqlc.arg(now)::timestamptz WHERE session_id = $1 AND generation = $2;

-- name: SetAttemptRestore :exec
UPDATE attempts SET restore = $3 WHERE session_id = $1 AND generation = $2;

-- name: SetAttemptOutcome :exec
UPDATE attempts SET outcome = $3 WHERE session_id = $1 AND generation = $2 AND outcome IS NULL;

-- name: ArtifactBytes :one
SELECT COALESCE(sum(bytes), 0)::bigint FROM artifacts WHERE session_id = $1;

-- name: GetArtifact :one
SELECT * FROM artifacts WHERE session_id = $1 AND sha256 = $2;

-- name: InsertArtifact :exec
INSERT INTO artifacts (session_id, sha256, bytes, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (session_id, sha256) DO NOTHING;

-- name: BundleBytes :one
-- All that was ever stored. The smallest takes a block of the disk; turns in
-- which nothing was committed share the bundle of the one before.
SELECT COALESCE(sum(b.bytes + b.replaced), 0)::bigint
FROM (SELECT GREATEST(max(bytes), 4096) AS bytes, sum(replaced) AS replaced FROM bundles WHERE session_id = $1 GROUP BY sha256) b;

-- name: UpsertBundle :exec
INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (session_id, generation, turn) DO UPDATE
SET replaced = bundles.replaced + CASE bundles.sha256 WHEN EXCLUDED.sha256 THEN 0 ELSE GREATEST(bundles.bytes, 4096) END,
  sha256 = EXCLUDED.sha256, bytes = EXCLUDED.bytes, tip = EXCLUDED.tip, created_at = EXCLUDED.created_at;

-- name: GetBundle :one
SELECT * FROM bundles WHERE session_id = $1 AND sha256 = $2 ORDER BY generation DESC, turn DESC LIMIT 1;

-- name: LastBundleBefore :one
SELECT * FROM bundles WHERE session_id = $1 AND sha256 <> '' AND generation < $2 AND generation > sqlc.arg(rewound) ORDER BY generation DESC, turn DESC LIMIT 1;

-- name: DirectivesAfter :many
SELECT * FROM directives WHERE session_id = $1 AND generation = $2 AND id > $3 ORDER BY id LIMIT 100;

-- name: UpsertNode :exec
INSERT INTO nodes (name, token_hash) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET token_hash = EXCLUDED.token_hash;

-- name: NodeByToken :one
SELECT name FROM nodes WHERE token_hash = $1;

-- name: SetNodeState :exec
UPDATE nodes SET state = $2, seen_at = sqlc.arg(now)::timestamptz WHERE name = $1;

-- name: TouchNode :exec
UPDATE nodes SET seen_at = sqlc.arg(now)::timestamptz WHERE name = $1;

-- name: NodeAttempts :many
-- Attempts whose clones a node must keep.
SELECT session_id, generation, snapshot_id FROM attempts WHERE node = $1 AND reaped_at IS NULL;

-- name: NodeOver :many
-- Attempts on a node that count no more and whose deadline is not past, but for
-- one whose clones are kept: people may look into them.
SELECT a.session_id, a.generation FROM attempts a JOIN sessions s ON s.id = a.session_id
WHERE a.node = sqlc.arg(node) AND a.deadline > sqlc.arg(since)::timestamptz
  AND (a.generation < s.generation OR a.ended_at IS NOT NULL AND a.outcome IS NULL AND a.keep_until IS NULL);

-- name: NodeSnapshots :many
-- Snapshots a node must keep: being built, published, or still under an attempt that is not over.
SELECT s.id FROM snapshots s WHERE s.node = sqlc.arg(node) AND (
  s.state IN ('building', 'ready')
  OR EXISTS (SELECT 1 FROM attempts a WHERE a.snapshot_id = s.id AND a.reaped_at IS NULL)
) ORDER BY s.id;

-- name: NodeRepositories :many
-- Repositories whose mirror a node must keep.
SELECT e.repository_id FROM environments e WHERE e.used_at > sqlc.arg(since)::timestamptz
UNION SELECT e.repository_id FROM snapshots n JOIN environments e ON e.id = n.environment_id WHERE n.state IN ('building', 'ready')
UNION SELECT s.repository_id FROM sessions s WHERE s.finished_at IS NULL
UNION SELECT s.repository_id FROM attempts a JOIN sessions s ON s.id = a.session_id WHERE a.node = sqlc.arg(node) AND a.reaped_at IS NULL
ORDER BY 1;

-- name: TakeWork :one
UPDATE node_work SET state = 'taken', lease_until = sqlc.arg(lease_until)::timestamptz, attempts = attempts + 1
WHERE id = (
  SELECT w.id FROM node_work w
  WHERE w.node = sqlc.arg(node) AND (w.kind = 'refresh') = sqlc.arg(refresh)::boolean AND (w.state = 'pending' OR (w.state = 'taken' AND w.lease_until < sqlc.arg(now)::timestamptz))
    AND (w.lease_until IS NULL OR w.lease_until < sqlc.arg(now)::timestamptz)
  ORDER BY w.id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING *;

-- name: LockRefreshes :exec
-- One transaction at a time hands a refresh out.
SELECT pg_advisory_xact_lock(5284718520010002);

-- name: RefreshesGoingOn :one
-- On all nodes, and on one that may be draining.
SELECT (SELECT count(*) FROM node_work w WHERE w.kind = 'refresh' AND w.state = 'taken' AND w.lease_until >= sqlc.arg(now)::timestamptz)::integer AS everywhere,
  (SELECT count(*) FROM node_work w WHERE w.kind = 'refresh' AND w.state = 'taken' AND w.lease_until >= sqlc.arg(now)::timestamptz AND w.node = n.name)::integer AS here,
  n.draining
FROM nodes n WHERE n.name = sqlc.arg(node);

-- name: NodeRunning :one
SELECT count(*)::integer FROM attempts WHERE node = $1 AND ended_at IS NULL;

-- name: SetNodeDraining :execrows
UPDATE nodes SET draining = sqlc.arg(draining) WHERE name = sqlc.arg(name);

-- name: RenewLease :exec
UPDATE node_work SET lease_until = GREATEST(lease_until, sqlc.arg(lease_until)::timestamptz)
WHERE node = sqlc.arg(node) AND id = sqlc.arg(id) AND state = 'taken';

-- name: LockWork :one
SELECT * FROM node_work WHERE id = $1 FOR UPDATE;

-- name: EndWork :exec
UPDATE node_work SET state = sqlc.arg(state), words = sqlc.arg(words), done_at = sqlc.arg(now)::timestamptz, lease_until = NULL
WHERE id = sqlc.arg(id);

-- name: PostponeWork :exec
UPDATE node_work SET state = 'pending', words = sqlc.arg(words), lease_until = sqlc.arg(until)::timestamptz
WHERE id = sqlc.arg(id);

-- name: OpenWork :many
SELECT * FROM node_work WHERE node = $1 AND state IN ('pending', 'taken') ORDER BY id;

-- name: LockSnapshot :one
SELECT * FROM snapshots WHERE id = $1 FOR UPDATE;

-- name: LockEnvironment :one
-- A change, so that a serialisable transaction that read before it fails and is repeated.
UPDATE environments SET used_at = used_at WHERE id = $1 RETURNING *;

-- name: CurrentSnapshot :one
SELECT * FROM snapshots WHERE environment_id = $1 AND node = $2 AND is_current;

-- name: RetireSnapshot :exec
UPDATE snapshots SET state = 'retired', is_current = false WHERE id = $1;

-- name: PublishSnapshot :exec
UPDATE snapshots s SET state = 'ready', store = sqlc.arg(store), bytes = sqlc.arg(bytes),
  phases = sqlc.arg(phases), published_at = sqlc.arg(now)::timestamptz,
  is_current = NOT s.cold, from_id = sqlc.arg(from_id), depth = 1 + COALESCE((SELECT f.depth FROM snapshots f WHERE f.id = sqlc.arg(from_id)), 0)
WHERE s.id = sqlc.arg(id);

-- name: FailSnapshot :exec
UPDATE snapshots SET state = 'failed', error = $2, is_current = false WHERE id = $1 AND state = 'building';

-- name: GetNode :one
SELECT * FROM nodes WHERE name = $1;

-- name: RetireLostSnapshots :many
-- Published snapshots that a node no longer has.
UPDATE snapshots SET state = 'retired', is_current = false, error = 'the node lost it'
WHERE node = sqlc.arg(node) AND state = 'ready' AND published_at < sqlc.arg(before)::timestamptz
  AND NOT id IN (SELECT jsonb_array_elements_text(sqlc.arg(has)::jsonb))
RETURNING id;

-- name: ReleaseWork :exec
-- The node's daemon is a new process: what the former was given is free again.
UPDATE node_work SET state = 'pending', lease_until = NULL WHERE node = $1 AND state = 'taken';
