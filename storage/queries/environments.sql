-- Looks at default branches, and the refreshes that follow from them.

-- name: ScheduleLook :exec
-- An environment of the repository is used: its branch is looked at from now on.
UPDATE repositories SET look_at = COALESCE(look_at, sqlc.arg(at)::timestamptz) WHERE id = sqlc.arg(id);

-- name: AskLook :execrows
-- The branch may have moved. 0 rows: nobody uses an environment of it.
UPDATE repositories r SET look_at = LEAST(COALESCE(r.look_at, sqlc.arg(now)::timestamptz), sqlc.arg(now)::timestamptz)
WHERE r.id = sqlc.arg(id) AND r.removed_at IS NULL
  AND EXISTS (SELECT 1 FROM environments e WHERE e.repository_id = r.id AND e.used_at > sqlc.arg(since)::timestamptz);

-- name: AskBuild :exec
UPDATE repositories SET build = CASE WHEN build = 'afresh' THEN build ELSE sqlc.arg(build)::text END, look_at = sqlc.arg(now)::timestamptz
WHERE id = sqlc.arg(id);

-- name: DueLooks :many
SELECT id FROM repositories WHERE look_at <= sqlc.arg(now)::timestamptz AND removed_at IS NULL ORDER BY look_at LIMIT sqlc.arg(at_most);

-- name: TakeLook :one
-- Claimed by moving it ahead; a look that is lost is repeated then.
UPDATE repositories SET look_at = sqlc.arg(claim_until)::timestamptz
WHERE id = sqlc.arg(id) AND look_at <= sqlc.arg(now)::timestamptz AND removed_at IS NULL
RETURNING *;

-- name: RepositoryInUse :one
SELECT EXISTS (SELECT 1 FROM environments e WHERE e.repository_id = $1 AND e.used_at > sqlc.arg(since)::timestamptz)::boolean;

-- name: EndLook :exec
-- A look that was asked for meanwhile stays.
UPDATE repositories SET look_tries = sqlc.arg(tries), look_error = sqlc.arg(error),
  look_at = CASE WHEN look_at = sqlc.arg(claimed)::timestamptz THEN sqlc.narg(next)::timestamptz ELSE look_at END
WHERE id = sqlc.arg(id);

-- name: LockRepository :one
SELECT * FROM repositories WHERE id = $1 FOR UPDATE;

-- name: SetHead :exec
UPDATE repositories SET head_sha = sqlc.arg(head_sha), head_environment = sqlc.arg(head_environment), head_words = sqlc.arg(head_words),
  looked_at = sqlc.arg(now)::timestamptz, build = ''
WHERE id = sqlc.arg(id);

-- name: PrepareEnvironment :one
-- As the configuration at the head says it now; that is no use of it.
INSERT INTO environments (id, repository_id, config_digest, spec, created_at, used_at)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (id) DO UPDATE SET spec = EXCLUDED.spec
RETURNING *;

-- name: LockEnvironmentNode :one
INSERT INTO environment_nodes (environment_id, node) VALUES ($1, $2)
ON CONFLICT (environment_id, node) DO UPDATE SET node = EXCLUDED.node
RETURNING *;

-- name: SetWanted :exec
UPDATE environment_nodes SET wanted_branch = $3, wanted_commit = $4, wanted_afresh = $5 WHERE environment_id = $1 AND node = $2;

-- name: SetRefreshFailed :exec
UPDATE environment_nodes SET stale_since = COALESCE(stale_since, sqlc.arg(now)::timestamptz), failures = failures + 1,
  failed_commit = sqlc.arg(failed_commit), error = sqlc.arg(error), retry_at = sqlc.arg(retry_at)::timestamptz
WHERE environment_id = sqlc.arg(environment_id) AND node = sqlc.arg(node);

-- name: SetRefreshed :exec
UPDATE environment_nodes SET stale_since = NULL, failures = 0, failed_commit = '', error = '', retry_at = NULL
WHERE environment_id = $1 AND node = $2;

-- name: SetAfresh :exec
UPDATE environment_nodes SET afresh = true WHERE environment_id = $1 AND node = $2;

-- name: BuildingSnapshot :one
SELECT * FROM snapshots WHERE environment_id = $1 AND node = $2 AND state = 'building' AND NOT cold ORDER BY generation DESC LIMIT 1;

-- name: SetSnapshotNewest :exec
UPDATE snapshots SET newest_at = sqlc.arg(now)::timestamptz WHERE id = sqlc.arg(id);

-- name: LockUntakenWork :one
-- Work that no node has seen yet.
SELECT * FROM node_work WHERE key = $1 AND state = 'pending' AND attempts = 0 FOR UPDATE;

-- name: SetWorkData :exec
UPDATE node_work SET data = $2 WHERE id = $1;

-- name: SetSnapshotCommit :exec
UPDATE snapshots SET commit_sha = $2 WHERE id = $1 AND state = 'building';

-- name: RetireColdSnapshots :many
-- Snapshots for sessions of one commit that none of them waits for any more.
UPDATE snapshots n SET state = 'retired'
WHERE n.cold AND n.state = 'ready' AND NOT EXISTS (
  SELECT 1 FROM sessions s WHERE s.environment_id = n.environment_id AND s.base_sha = n.commit_sha AND s.finished_at IS NULL
)
RETURNING n.id;

-- name: SetWorkDrift :exec
UPDATE node_work SET drift = $2 WHERE id = $1;

-- name: SetAttemptDrifted :exec
UPDATE attempts SET drifted = $3 WHERE session_id = $1 AND generation = $2;

-- Clones of failed sessions that are kept.

-- name: SetAttemptKeep :exec
UPDATE attempts SET keep_until = $3 WHERE session_id = $1 AND generation = $2 AND reaped_at IS NULL;

-- name: ReleaseScene :execrows
UPDATE attempts a SET keep_until = NULL FROM sessions s
WHERE s.id = a.session_id AND a.session_id = $1 AND s.finished_at IS NOT NULL AND a.keep_until IS NOT NULL AND a.reaped_at IS NULL;

-- name: SetAttemptStopped :exec
UPDATE attempts SET stopped_at = COALESCE(stopped_at, sqlc.arg(now)::timestamptz)
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation);

-- Going on from an earlier turn.

-- name: BundleOfTurn :one
-- Generation and turn 0 are the newest there is. What a fork began with is no
-- turn of its own.
SELECT * FROM bundles WHERE session_id = sqlc.arg(session_id) AND generation > 0
  AND (sqlc.arg(generation)::integer = 0 OR generation = sqlc.arg(generation)::integer)
  AND (sqlc.arg(turn)::integer = 0 OR turn = sqlc.arg(turn)::integer)
ORDER BY generation DESC, turn DESC LIMIT 1;

-- name: GetBundleAt :one
SELECT * FROM bundles WHERE session_id = $1 AND generation = $2 AND turn = $3 AND sha256 <> '';

-- name: BundleBeforeTurn :one
SELECT * FROM bundles WHERE session_id = $1 AND generation = $2 AND turn < $3 ORDER BY turn DESC LIMIT 1;

-- name: InsertUnchangedTurn :exec
-- A turn in which nothing was committed: the bundle is that of an earlier one, or
-- none, without a sha256, where nothing was committed at all.
INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (session_id, generation, turn) DO NOTHING;

-- name: HoldAttempt :exec
-- Longer than it is kept anyway, if it is still there and has ended.
UPDATE attempts SET keep_until = GREATEST(keep_until, sqlc.arg(until)::timestamptz)
WHERE session_id = sqlc.arg(session_id) AND generation = sqlc.arg(generation) AND reaped_at IS NULL;

-- name: EventsRemoved :one
SELECT EXISTS (SELECT 1 FROM events_removed WHERE session_id = $1)::boolean;

-- name: ReopenSession :one
-- Its check run on a pull request's head is completed, so that another is made.
WITH gone AS (
  DELETE FROM effects WHERE session_id = sqlc.arg(id)::text AND key LIKE '%/check-head'
)
UPDATE sessions SET state = 'queued', reason = '', words = '', queue_reason = 'waiting for its turn', version = version + 1,
  state_at = sqlc.arg(now)::timestamptz, deadline = sqlc.arg(deadline), next_check_at = sqlc.arg(now)::timestamptz,
  stop_at = NULL, stop_by = '', stop_words = '', stop_reason = '', head_check_run_id = 0, finished_at = NULL, reported_at = NULL, outcome = NULL,
  queue_at = sqlc.arg(now)::timestamptz, queue_position = 0, waiting_since = sqlc.arg(now)::timestamptz,
  effect_tries = 0, report_tries = 0, report_after = NULL, start_from = sqlc.arg(start_from), rewound = generation
WHERE id = sqlc.arg(id) AND version = sqlc.arg(version)
RETURNING *;

-- name: SetStartFrom :exec
UPDATE sessions SET start_from = $2 WHERE id = $1;
