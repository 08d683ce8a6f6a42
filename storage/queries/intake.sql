-- Deliveries: stored by the webhook, worked on by the intake.

-- name: StoreDelivery :execrows
-- Stores a delivery. 0 rows: this GUID is there already.
INSERT INTO deliveries (guid, event, action, installation_id, repository_id, sender_id, payload, status, note, remote_addr)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (guid) DO NOTHING;

-- name: DeliveryByGUID :one
SELECT * FROM deliveries WHERE guid = $1;

-- name: FinishDelivery :exec
UPDATE deliveries SET status = $2, note = $3, handled_at = now() WHERE guid = $1;

-- Intents: one row for each wish, by its effect.

-- name: ClaimIntent :execrows
-- Records a wish before anything is done about it. 0 rows: it is known already.
INSERT INTO intents (key, delivery_guid, repository_id, issue_number, actor_id, actor_login, kind)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (key) DO NOTHING;

-- name: IntentByKey :one
SELECT * FROM intents WHERE key = $1;

-- name: RecentIntents :one
-- What one account asked for in one thread within the last so many seconds, and
-- whether any of it was denied. Pipelines have no number, only what they are called.
SELECT count(*) AS asked, count(*) FILTER (WHERE outcome = 'denied') AS denied FROM intents
WHERE repository_id = sqlc.arg(repository_id) AND issue_number = sqlc.arg(issue_number) AND actor_id = sqlc.arg(actor_id)
  AND (actor_id <> 0 OR actor_login = sqlc.arg(actor_login))
  AND created_at > now() - sqlc.arg(seconds)::integer * interval '1 second';

-- name: CommandsObeyed :many
-- The newest commands in a thread that were obeyed at once, as stop is.
SELECT * FROM intents WHERE repository_id = $1 AND issue_number = $2 AND kind = 'command' AND outcome = 'replied'
ORDER BY created_at DESC LIMIT 50;

-- name: LastStartOfSession :one
-- What a session was last started or continued by.
SELECT * FROM intents
WHERE repository_id = sqlc.arg(repository_id) AND session_id = sqlc.arg(session)::text AND outcome = 'started' -- only the first has an index
ORDER BY created_at DESC LIMIT 1;

-- name: FinishIntent :exec
UPDATE intents SET outcome = $2, note = $3, session_id = $4 WHERE key = $1;

-- Installations and repositories, by numeric id; names are refreshed from every payload.

-- name: SawInstallation :exec
-- An event arrived from this installation: it exists. Suspension is left as it is.
INSERT INTO installations (id, account) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET
  account = CASE WHEN excluded.account = '' THEN installations.account ELSE excluded.account END,
  deleted_at = NULL, updated_at = now();

-- name: DeleteInstallation :exec
UPDATE installations SET deleted_at = now(), updated_at = now() WHERE id = $1;

-- name: SuspendInstallation :exec
UPDATE installations SET suspended_at = coalesce(suspended_at, now()), updated_at = now() WHERE id = $1;

-- name: RepositoryOfInstallation :one
SELECT id FROM repositories WHERE installation_id = $1 AND removed_at IS NULL ORDER BY updated_at DESC LIMIT 1;

-- name: UnsuspendInstallation :exec
-- Ends of sessions that could not be told meanwhile are told now.
WITH untold AS (
  UPDATE sessions s SET reported_at = NULL, report_tries = 0, report_after = NULL, next_check_at = now(), deadline = now() + interval '1 hour', version = version + 1
  FROM repositories r JOIN installations i ON i.id = r.installation_id
  WHERE i.id = $1 AND i.suspended_at IS NOT NULL AND s.repository_id = r.id
    AND s.finished_at >= i.suspended_at - interval '1 day' AND s.reported_at >= i.suspended_at - interval '10 minutes'
)
UPDATE installations SET suspended_at = NULL, updated_at = now() WHERE installations.id = $1;

-- name: SawRepository :exec
-- Empty values of the payload leave what is known. A repository that belongs to
-- another account by now takes its open sessions with it, and of one that was
-- away the ends are told that could not be told.
WITH moved AS (
  UPDATE sessions SET installation_id = $2 WHERE repository_id = $1 AND installation_id <> $2 AND finished_at IS NULL
), untold AS (
  UPDATE sessions s SET reported_at = NULL, report_tries = 0, report_after = NULL, next_check_at = now(), deadline = now() + interval '1 hour', version = version + 1
  FROM repositories r
  WHERE r.id = $1 AND r.removed_at IS NOT NULL AND s.repository_id = r.id
    AND s.finished_at >= r.removed_at - interval '1 day' AND s.reported_at >= r.removed_at - interval '10 minutes'
)
INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET
  installation_id = excluded.installation_id,
  owner = CASE WHEN excluded.owner = '' THEN repositories.owner ELSE excluded.owner END,
  name = CASE WHEN excluded.name = '' THEN repositories.name ELSE excluded.name END,
  default_branch = CASE WHEN excluded.default_branch = '' THEN repositories.default_branch ELSE excluded.default_branch END,
  removed_at = NULL, updated_at = now();

-- name: RemoveRepository :exec
-- Only the installation that holds a repository can remove it: a late event of
-- the account it was transferred from changes nothing.
UPDATE repositories SET removed_at = now(), updated_at = now() WHERE id = $1 AND installation_id = $2;

-- name: RemoveRepositoriesOf :exec
UPDATE repositories SET removed_at = now(), updated_at = now() WHERE installation_id = $1 AND removed_at IS NULL;

-- Sessions of an issue.

-- name: OpenSessionOfIssue :one
-- The session that still works on an issue or pull request, if there is one.
SELECT * FROM sessions
WHERE repository_id = $1 AND (issue_number = $2 OR pull_number = $2 AND pull_number > 0)
  AND state NOT IN ('delivered', 'no_change', 'failed', 'stopped', 'timed_out', 'over_budget', 'infrastructure')
ORDER BY created_at DESC, id
LIMIT 1;

-- name: LastSessionOfIssue :one
-- The newest that was asked for on an issue or pull request, or that made it.
SELECT * FROM sessions
WHERE repository_id = $1 AND (issue_number = $2 OR pull_number = $2 AND pull_number > 0 OR pull_request = $2 AND pull_request > 0)
ORDER BY created_at DESC, id
LIMIT 1;

-- Effects of the intake (replies): written before, looked up before they are repeated.

-- name: StartIntakeEffect :execrows
-- 0 rows: it was started before; see IntakeEffect.
INSERT INTO effects (key, session_id, state) VALUES ($1, '', 'started')
ON CONFLICT (key) DO NOTHING;

-- name: IntakeEffect :one
SELECT * FROM effects WHERE key = $1;

-- name: FinishIntakeEffect :exec
UPDATE effects SET state = 'done', result = $2, done_at = now() WHERE key = $1;
