-- What no event told of.

-- name: Watermark :one
SELECT at FROM watermarks WHERE name = $1;

-- name: SetWatermark :exec
INSERT INTO watermarks (name, at) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET at = excluded.at;

-- name: DeliveryKnown :one
SELECT EXISTS (SELECT FROM deliveries WHERE guid = $1);

-- name: KnownInstallations :many
SELECT id FROM installations WHERE deleted_at IS NULL;

-- name: RepositoriesToLookAt :many
-- Of one installation, those longest not looked at first.
SELECT * FROM repositories WHERE installation_id = sqlc.arg(installation_id) AND removed_at IS NULL
ORDER BY issues_seen_at NULLS FIRST, id LIMIT sqlc.arg(most);

-- name: KnownRepositories :many
SELECT id FROM repositories WHERE installation_id = $1 AND removed_at IS NULL;

-- name: SetIssuesSeen :exec
UPDATE repositories SET issues_seen_at = $2 WHERE id = $1;

-- name: LabelKnown :one
-- A label's wish that was recorded since a time, or a session that was made.
SELECT (EXISTS (SELECT FROM intents i WHERE i.repository_id = sqlc.arg(repository_id) AND i.issue_number = sqlc.arg(issue_number)
    AND i.kind = 'label' AND i.created_at >= sqlc.arg(since))
  OR EXISTS (SELECT FROM sessions s WHERE s.repository_id = sqlc.arg(repository_id) AND s.issue_number = sqlc.arg(issue_number)
    AND s.created_at >= sqlc.arg(since)))::boolean AS known;

-- name: PullsToLookAt :many
-- Sessions whose pull request is open as far as we know, those longest not
-- looked at first.
SELECT s.id, s.repository_id, s.pull_request, r.owner, r.name FROM sessions s JOIN repositories r ON r.id = s.repository_id
WHERE r.installation_id = sqlc.arg(installation_id) AND r.removed_at IS NULL AND s.pull_request > 0 AND s.pull_closed_at IS NULL
ORDER BY s.pull_seen_at NULLS FIRST, s.id LIMIT sqlc.arg(most);

-- name: SetPullSeen :exec
UPDATE sessions SET pull_seen_at = sqlc.arg(now), pull_closed_at = sqlc.narg(closed_at)
WHERE repository_id = sqlc.arg(repository_id) AND pull_request = sqlc.arg(pull_request);

-- Re-runs that people ask for.

-- name: SessionsOfCommit :many
-- Sessions that have a check run on a commit: they pushed it, or worked on it as
-- the head of a pull request.
SELECT * FROM sessions WHERE repository_id = sqlc.arg(repository_id)
  AND (check_run_id > 0 AND head_sha = sqlc.arg(sha)::text OR head_check_run_id > 0 AND base_sha = sqlc.arg(sha)::text)
ORDER BY created_at, id;

-- name: ForgetCheckRuns :exec
-- Those of a session are made anew, at once if it has ended.
WITH gone AS (
  DELETE FROM effects WHERE session_id = sqlc.arg(id)::text AND (key LIKE '%/check' OR key LIKE '%/check-head')
)
UPDATE sessions SET check_run_id = 0, head_check_run_id = 0, reported_at = NULL, report_tries = 0, report_after = NULL,
  next_check_at = sqlc.arg(now)::timestamptz, version = version + 1,
  deadline = CASE WHEN finished_at IS NULL THEN deadline ELSE sqlc.arg(deadline)::timestamptz END
WHERE id = sqlc.arg(id)::text;

-- name: ReviewsAskedAgain :many
-- The newest review of each pull request, or merge group (0), with that head is
-- said anew.
UPDATE reviews r SET conclusion = 'asked again' WHERE r.repository_id = sqlc.arg(repository_id) AND r.head_sha = sqlc.arg(sha)::text
  AND r.number = (SELECT max(number) FROM reviews o WHERE o.repository_id = r.repository_id AND o.pull_request = r.pull_request AND o.head_sha = r.head_sha)
RETURNING pull_request;
