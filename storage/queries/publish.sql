-- Effects of publishing and reporting: written before, looked up before they are repeated.

-- name: BeginEffect :execrows
-- 0 rows: an earlier try was begun; see EffectByKey.
INSERT INTO effects (key, session_id, state, started_at) VALUES (sqlc.arg(key), sqlc.arg(session_id), 'started', sqlc.arg(now)::timestamptz)
ON CONFLICT (key) DO NOTHING;

-- name: EffectByKey :one
SELECT * FROM effects WHERE key = $1;

-- name: EndEffect :exec
UPDATE effects SET state = 'done', result = sqlc.arg(result), done_at = sqlc.arg(now)::timestamptz WHERE key = sqlc.arg(key);

-- Branches.

-- name: ClaimBranch :execrows
-- Records a branch as ours before anything is pushed to it. 0 rows: it is recorded already.
INSERT INTO branches (repository_id, name, session_id, created_at) VALUES (sqlc.arg(repository_id), sqlc.arg(name), sqlc.arg(session_id), sqlc.arg(now)::timestamptz)
ON CONFLICT (repository_id, name) DO NOTHING;

-- name: BranchByName :one
SELECT * FROM branches WHERE repository_id = $1 AND name = $2;

-- name: BranchPushing :execrows
-- Written before a push: a retry then knows its own commit on the remote.
UPDATE branches SET pushing_sha = sqlc.arg(sha)
WHERE repository_id = sqlc.arg(repository_id) AND name = sqlc.arg(name) AND session_id = sqlc.arg(session_id);

-- name: BranchPushed :execrows
UPDATE branches SET last_sha = sqlc.arg(sha), pushing_sha = ''
WHERE repository_id = sqlc.arg(repository_id) AND name = sqlc.arg(name) AND session_id = sqlc.arg(session_id);

-- Sessions, as publishing and reporting see them. None of this moves a state,
-- so the version stays.

-- name: PublishSession :one
SELECT * FROM sessions WHERE id = $1;

-- name: PublishPlace :one
-- Where a session's repository is now, and whether we may still go there.
SELECT r.id, r.owner, r.name, r.default_branch, r.installation_id, r.removed_at, i.suspended_at, i.deleted_at
FROM repositories r LEFT JOIN installations i ON i.id = r.installation_id
WHERE r.id = $1;

-- name: SetSessionPushed :exec
UPDATE sessions SET branch = $2, head_sha = $3 WHERE id = $1;

-- name: SetSessionPullRequest :exec
UPDATE sessions SET pull_request = $2 WHERE id = $1;

-- name: SetSessionComment :exec
UPDATE sessions SET comment_id = sqlc.arg(comment_id), comment_digest = sqlc.arg(comment_digest), comment_at = sqlc.arg(now)::timestamptz
WHERE id = sqlc.arg(id);

-- name: SetSessionCheckRun :exec
UPDATE sessions SET check_run_id = $2 WHERE id = $1;

-- name: NewestBundle :one
-- The newest work a session uploaded, of whatever attempt.
SELECT * FROM bundles WHERE session_id = $1 ORDER BY generation DESC, created_at DESC, turn DESC LIMIT 1;

-- name: ReportAttempt :one
SELECT * FROM attempts WHERE session_id = $1 AND generation = $2;

-- name: ReportSnapshot :one
SELECT * FROM snapshots WHERE id = $1;

-- Evidence files.

-- name: KeepEvidence :exec
INSERT INTO evidence (session_id, name, sha256, bytes, created_at) VALUES (sqlc.arg(session_id), sqlc.arg(name), sqlc.arg(sha256), sqlc.arg(bytes), sqlc.arg(now)::timestamptz)
ON CONFLICT (session_id, name) DO UPDATE SET sha256 = EXCLUDED.sha256, bytes = EXCLUDED.bytes, created_at = EXCLUDED.created_at;

-- name: EvidenceFile :one
SELECT * FROM evidence WHERE session_id = $1 AND name = $2;
