-- What became of pull requests that sessions had a hand in.

-- name: SawPull :exec
INSERT INTO pulls (repository_id, number) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: LockPull :one
SELECT * FROM pulls WHERE repository_id = $1 AND number = $2 FOR UPDATE;

-- name: PullRow :one
SELECT * FROM pulls WHERE repository_id = $1 AND number = $2;

-- name: SetPullBase :exec
UPDATE pulls SET base_ref = sqlc.arg(base_ref), base_since = sqlc.narg(base_since) WHERE repository_id = sqlc.arg(repository_id) AND number = sqlc.arg(number);

-- name: SetPullMerged :exec
UPDATE pulls SET merged_at = sqlc.narg(merged_at), merge_sha = sqlc.arg(merge_sha) WHERE repository_id = sqlc.arg(repository_id) AND number = sqlc.arg(number);

-- name: SetPullPaths :exec
UPDATE pulls SET paths = sqlc.arg(paths)::jsonb WHERE repository_id = sqlc.arg(repository_id) AND number = sqlc.arg(number);

-- name: SetPullReviewsRead :exec
UPDATE pulls SET reviews_read = true WHERE repository_id = $1 AND number = $2;

-- name: SetPullsWatched :exec
UPDATE pulls SET watched_until = sqlc.arg(until)::timestamptz
WHERE repository_id = sqlc.arg(repository_id) AND base_ref = sqlc.arg(base_ref) AND merged_at > sqlc.arg(since)::timestamptz;

-- name: InsertPullEvent :exec
-- What was told before stays as it was told first.
INSERT INTO pull_events (repository_id, number, kind, key, at, actor_id, actor_login, bot, sha, before)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING;

-- name: PullEvents :many
SELECT * FROM pull_events WHERE repository_id = $1 AND number = $2 ORDER BY at, kind, key LIMIT 5000;

-- name: PutOutcome :exec
INSERT INTO session_outcomes (session_id, pull_request, opened, opened_at, merged_at, closed_at, reverted_at, review_seconds, rounds, pushes, fixes, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (session_id) DO UPDATE SET pull_request = excluded.pull_request, opened = excluded.opened, opened_at = excluded.opened_at,
  merged_at = excluded.merged_at, closed_at = excluded.closed_at, reverted_at = excluded.reverted_at, review_seconds = excluded.review_seconds,
  rounds = excluded.rounds, pushes = excluded.pushes, fixes = excluded.fixes, updated_at = excluded.updated_at;

-- name: SessionOutcome :one
SELECT * FROM session_outcomes WHERE session_id = $1;

-- name: PullsMergedSince :many
-- Those that went into a branch.
SELECT * FROM pulls WHERE repository_id = sqlc.arg(repository_id) AND base_ref = sqlc.arg(base_ref) AND merged_at > sqlc.arg(since)::timestamptz
ORDER BY number LIMIT 100;

-- name: PullsOfCommits :many
-- Pull requests of ours that one of some commits, separated by commas, merged or
-- is the work of.
SELECT number FROM pulls p WHERE p.repository_id = sqlc.arg(repository_id) AND p.merged_at IS NOT NULL
  AND (p.merge_sha = ANY(string_to_array(sqlc.arg(shas)::text, ','))
    OR EXISTS (SELECT FROM sessions s WHERE s.repository_id = p.repository_id AND s.pull_request = p.number AND s.head_sha = ANY(string_to_array(sqlc.arg(shas)::text, ','))))
ORDER BY number LIMIT 100;

-- name: PullsOfIssue :many
-- Merged pull requests of the sessions on an issue.
SELECT DISTINCT p.number FROM pulls p JOIN sessions s ON s.repository_id = p.repository_id AND s.pull_request = p.number
WHERE p.repository_id = sqlc.arg(repository_id) AND s.issue_number = sqlc.arg(issue_number) AND p.merged_at > sqlc.arg(since)::timestamptz
ORDER BY p.number LIMIT 100;

-- name: PullsToRead :many
-- Of an installation, those that have ended and whose reviews were not read since.
SELECT p.number, r.id, r.owner, r.name FROM pulls p JOIN repositories r ON r.id = p.repository_id
WHERE r.installation_id = sqlc.arg(installation_id) AND r.removed_at IS NULL AND NOT p.reviews_read
  AND EXISTS (SELECT FROM pull_events e WHERE e.repository_id = p.repository_id AND e.number = p.number AND e.kind IN ('merged', 'closed'))
ORDER BY p.repository_id, p.number LIMIT sqlc.arg(most);

-- name: BasesToWatch :many
-- Of an installation, the branches that ours went into since a time, those
-- longest not looked through first.
SELECT r.id, r.owner, r.name, p.base_ref, min(COALESCE(p.watched_until, p.merged_at))::timestamptz AS since
FROM pulls p JOIN repositories r ON r.id = p.repository_id
WHERE r.installation_id = sqlc.arg(installation_id) AND r.removed_at IS NULL AND p.merged_at > sqlc.arg(after)::timestamptz
  AND COALESCE(p.watched_until, p.merged_at) < sqlc.arg(before)::timestamptz
GROUP BY r.id, r.owner, r.name, p.base_ref ORDER BY since LIMIT sqlc.arg(most);

-- Sessions whose repository went elsewhere.

-- name: SessionsWithoutPlace :many
-- Open sessions whose repository the App has not reached since a time.
SELECT s.id FROM sessions s JOIN repositories r ON r.id = s.repository_id LEFT JOIN installations i ON i.id = r.installation_id
WHERE s.finished_at IS NULL AND s.stop_at IS NULL
  AND (r.removed_at < sqlc.arg(before)::timestamptz OR i.deleted_at < sqlc.arg(before)::timestamptz)
ORDER BY s.id LIMIT 1000;

-- name: PullsWorkedOn :many
-- Of an installation, pull requests that a session is at work on.
SELECT DISTINCT s.repository_id, s.pull_number, r.owner, r.name FROM sessions s JOIN repositories r ON r.id = s.repository_id
WHERE r.installation_id = sqlc.arg(installation_id) AND r.removed_at IS NULL AND s.pull_number > 0 AND s.finished_at IS NULL AND s.stop_at IS NULL
ORDER BY s.repository_id, s.pull_number LIMIT sqlc.arg(most);

-- name: PushTold :one
-- Whether a push to some branch of a repository was told of since a time.
SELECT EXISTS (SELECT FROM deliveries WHERE repository_id = sqlc.arg(repository_id)::bigint AND event = 'push' AND received_at >= sqlc.arg(since)::timestamptz);

-- name: PresentSpec :one
-- What a repository asked for when its default branch was last looked at.
SELECT e.spec FROM repositories r JOIN environments e ON e.id = r.head_environment WHERE r.id = $1;
