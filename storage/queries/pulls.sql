-- Sessions on pull requests, and what people ask of sessions that are there.

-- name: SetSessionPull :exec
UPDATE sessions SET pull_number = sqlc.arg(pull_number), head_repo_id = sqlc.arg(head_repo_id), base_ref = sqlc.arg(base_ref),
  deliver = sqlc.arg(deliver), locked = sqlc.arg(locked), context = sqlc.narg(context)
WHERE id = sqlc.arg(id);

-- name: OpenSessionsOfPull :many
-- Sessions that still work on the head of a pull request.
SELECT * FROM sessions
WHERE repository_id = $1 AND pull_number = $2 AND pull_number > 0 AND finished_at IS NULL
ORDER BY created_at, id;

-- name: OpenSessionsOfHead :many
-- Sessions that still work on the head of a pull request from this branch.
SELECT * FROM sessions
WHERE repository_id = sqlc.arg(repository_id)::bigint AND head_repo_id = sqlc.arg(repository_id)::bigint
  AND pull_number > 0 AND base_branch = sqlc.arg(branch) AND finished_at IS NULL
ORDER BY created_at, id;

-- name: OpenSessionsOfRepository :many
SELECT id FROM sessions WHERE repository_id = $1 AND finished_at IS NULL ORDER BY created_at, id;

-- name: SetSessionsLocked :exec
UPDATE sessions SET locked = sqlc.arg(locked) WHERE repository_id = sqlc.arg(repository_id) AND issue_number = sqlc.arg(number)::integer;

-- name: SetSessionHeadCheckRun :exec
UPDATE sessions SET head_check_run_id = $2 WHERE id = $1;

-- name: SetStopReason :exec
UPDATE sessions SET stop_reason = $2 WHERE id = $1;

-- name: InsertPrompt :execrows
-- The next of a session. 0 rows: this wish was added before.
INSERT INTO prompts (session_id, number, text, author_id, author_login, comment_id, intent_key, created_at)
SELECT sqlc.arg(session_id), sqlc.arg(number)::integer, sqlc.arg(text), sqlc.arg(author_id), sqlc.arg(author_login), sqlc.arg(comment_id), sqlc.arg(intent_key), sqlc.arg(now)::timestamptz
ON CONFLICT (session_id, intent_key) DO NOTHING;

-- name: Prompts :many
SELECT * FROM prompts WHERE session_id = $1 ORDER BY number;

-- name: CopyPrompts :exec
INSERT INTO prompts (session_id, number, text, author_id, author_login, comment_id, intent_key, created_at)
SELECT sqlc.arg(session_id), p.number, p.text, p.author_id, p.author_login, p.comment_id, p.intent_key, p.created_at
FROM prompts p WHERE p.session_id = sqlc.arg(from_session);

-- name: PromptsWorkedOn :one
-- How many further prompts the agent of an attempt is done with. The first is
-- the session's own.
SELECT count(DISTINCT data->>'prompt')::integer FROM events
WHERE session_id = $1 AND generation = $2 AND kind = 'prompt' AND data->'done' = 'true' AND COALESCE(data->>'failed', '') = '' AND data->>'prompt' <> '1';

-- name: PushesSeen :many
-- Deliveries that tell of a moved head of some pull request of a repository,
-- the latest first.
SELECT guid, payload, received_at FROM deliveries
WHERE repository_id = sqlc.arg(repository_id)::bigint AND event = 'pull_request' AND action = 'synchronize' AND received_at > sqlc.arg(since)::timestamptz
ORDER BY received_at DESC LIMIT 200;

-- name: IssueChangesSeen :many
-- Deliveries that tell of a label put on or taken off, or of an issue closed or
-- opened again, somewhere in a repository, the latest first.
SELECT guid, payload, received_at FROM deliveries
WHERE repository_id = sqlc.arg(repository_id)::bigint AND event IN ('issues', 'pull_request')
  AND action IN ('labeled', 'unlabeled', 'closed', 'reopened') AND received_at > sqlc.arg(since)::timestamptz
ORDER BY received_at DESC LIMIT 500;

-- name: TakeBranch :execrows
-- A branch of ours goes on in another session, if it is where the caller saw it.
UPDATE branches SET session_id = sqlc.arg(session_id)
WHERE repository_id = sqlc.arg(repository_id) AND name = sqlc.arg(name) AND last_sha = sqlc.arg(last_sha) AND (pushing_sha = '' OR session_id = sqlc.arg(session_id));
