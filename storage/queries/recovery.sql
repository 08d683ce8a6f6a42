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
