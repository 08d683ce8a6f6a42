-- What people are asked to allow.

-- name: InsertApproval :one
INSERT INTO approvals (session_id, kind, asked, words, digest, bundle, policy, base_sha, remote_head, asked_by, asked_login, requested_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
RETURNING *;

-- name: PendingApprovals :many
SELECT * FROM approvals WHERE session_id = $1 AND state = 'pending' ORDER BY id;

-- name: ApprovedApprovals :many
-- What was allowed to a session, in the order it was asked for.
SELECT * FROM approvals WHERE session_id = $1 AND state = 'approved' ORDER BY id;

-- name: PublishQuestions :many
-- What was asked before a result may be pushed, whatever came of it.
SELECT * FROM approvals WHERE session_id = $1 AND kind = 'publish' ORDER BY id;

-- name: AnswerApproval :one
UPDATE approvals SET state = sqlc.arg(state), answered_by = sqlc.arg(by_id), answered_login = sqlc.arg(login), answered_how = sqlc.arg(how), answered_at = sqlc.arg(now)::timestamptz
WHERE id = sqlc.arg(id) AND state = 'pending'
RETURNING *;

-- name: CloseApproval :one
-- It does not count any more, whoever has answered it.
UPDATE approvals SET state = sqlc.arg(state) WHERE id = sqlc.arg(id) AND state IN ('pending', 'approved')
RETURNING *;

-- name: DueApprovals :many
-- Those that nobody answered in time. A session that waits for one expires itself.
SELECT a.* FROM approvals a JOIN sessions s ON s.id = a.session_id
WHERE a.state = 'pending' AND a.expires_at <= sqlc.arg(now)::timestamptz AND s.state <> 'needs_approval'
ORDER BY a.expires_at LIMIT sqlc.arg(at_most)::integer;

-- name: WidenSession :exec
-- A person allowed more than the session was created with.
UPDATE sessions SET spec = sqlc.arg(spec), budget = sqlc.arg(budget) WHERE id = sqlc.arg(id);

-- name: AnsweredSince :many
-- What a person answered lately in a session.
SELECT * FROM approvals WHERE session_id = sqlc.arg(session_id) AND answered_by = sqlc.arg(by_id)::bigint AND answered_at >= sqlc.arg(since)::timestamptz ORDER BY id DESC;

-- Independent reviews of our pull requests.

-- name: SessionsOfPull :many
-- The sessions that had a hand in a pull request: it is theirs, it comes from
-- their branch, they pushed onto its head, or its head is what they pushed.
SELECT * FROM sessions WHERE repository_id = sqlc.arg(repository_id)
  AND (pull_request = sqlc.arg(pull_request)::integer AND pull_request > 0
    OR pull_number = sqlc.arg(pull_request)::integer AND pull_number > 0 AND deliver = 'head' AND head_sha <> ''
    OR branch = sqlc.arg(head_ref)::text AND branch <> ''
    OR head_sha = sqlc.arg(head_sha)::text AND head_sha <> '')
ORDER BY created_at, id;

-- name: InsertReview :execrows
INSERT INTO reviews (repository_id, pull_request, head_sha, number, conclusion, words, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING;

-- name: LastReview :one
SELECT * FROM reviews WHERE repository_id = $1 AND pull_request = $2 AND head_sha = $3 ORDER BY number DESC LIMIT 1;

-- name: SetReview :exec
UPDATE reviews SET check_run_id = sqlc.arg(check_run_id), words = sqlc.arg(words)
WHERE repository_id = sqlc.arg(repository_id) AND pull_request = sqlc.arg(pull_request) AND head_sha = sqlc.arg(head_sha) AND number = sqlc.arg(number);
