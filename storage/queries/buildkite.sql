-- Sessions that pipelines of Buildkite asked for.

-- name: InsertPipelineSession :exec
INSERT INTO pipeline_sessions (session_id, repository_id, organization_id, pipeline_id, slug, act, build_number, job_id, fixes, branch, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: PipelineSession :one
SELECT * FROM pipeline_sessions WHERE session_id = $1;

-- name: CopyPipelineSession :exec
-- A session that goes on from another without a person is the same pipeline's.
-- It is no further try to fix a build that a pipeline asks for.
INSERT INTO pipeline_sessions (session_id, repository_id, organization_id, pipeline_id, slug, act, build_number, job_id, created_at)
SELECT sqlc.arg(session_id), repository_id, organization_id, pipeline_id, slug, act, build_number, job_id, sqlc.arg(now)::timestamptz
FROM pipeline_sessions WHERE pipeline_sessions.session_id = sqlc.arg(from_session);

-- name: FixAttempts :one
-- How many sessions tried to fix the builds of a commit, and of the branch that
-- has it since a time.
SELECT count(*) FILTER (WHERE fixes = sqlc.arg(sha)::text) AS of_commit,
  count(*) FILTER (WHERE created_at > sqlc.arg(since)::timestamptz) AS of_branch
FROM pipeline_sessions
WHERE repository_id = sqlc.arg(repository_id) AND branch = sqlc.arg(branch) AND fixes <> '';

-- name: RepositoryByName :one
-- A repository that can be worked in now, by its present name.
SELECT r.* FROM repositories r JOIN installations i ON i.id = r.installation_id
WHERE lower(r.owner) = lower(sqlc.arg(owner)::text) AND lower(r.name) = lower(sqlc.arg(name)::text)
  AND r.removed_at IS NULL AND i.suspended_at IS NULL AND i.deleted_at IS NULL
ORDER BY r.updated_at DESC LIMIT 1;

-- name: InstalledRepository :one
-- The same by its number.
SELECT r.* FROM repositories r JOIN installations i ON i.id = r.installation_id
WHERE r.id = $1 AND r.removed_at IS NULL AND i.suspended_at IS NULL AND i.deleted_at IS NULL;

-- name: OwnBranch :one
-- Whether a session pushed a branch, or what is built. A pipeline may ask for
-- another repository than the one that it builds, so it is that of no matter which;
-- somebody's branch that a session pushed to is not among ours.
SELECT (EXISTS (SELECT FROM branches b WHERE b.name = sqlc.arg(branch))
  OR EXISTS (SELECT FROM branches b WHERE b.last_sha = sqlc.arg(sha)::text AND b.last_sha <> '')
  OR EXISTS (SELECT FROM sessions s WHERE s.head_sha = sqlc.arg(sha)::text AND s.head_sha <> ''))::boolean AS own;

-- name: PullOfBranch :one
-- The pull request that a session opened for a branch; 0: none.
SELECT coalesce(max(s.pull_request), 0)::integer AS pull FROM branches b JOIN sessions s ON s.id = b.session_id
WHERE b.repository_id = $1 AND b.name = $2;

-- Tokens of steps.

-- name: InsertPipelineToken :exec
INSERT INTO pipeline_tokens (hash, session_id, created_at) VALUES (sqlc.arg(hash), sqlc.arg(session_id), sqlc.arg(now)::timestamptz);

-- name: TrimPipelineTokens :exec
-- Of one session the newest few are good.
DELETE FROM pipeline_tokens t WHERE t.session_id = sqlc.arg(session_id) AND t.hash NOT IN (
  SELECT n.hash FROM pipeline_tokens n WHERE n.session_id = sqlc.arg(session_id) ORDER BY n.created_at DESC, n.hash LIMIT sqlc.arg(most)::integer);

-- name: SessionOfPipelineToken :one
-- The session that a token reads, until a time after its end.
SELECT s.* FROM pipeline_tokens t JOIN sessions s ON s.id = t.session_id
WHERE t.hash = sqlc.arg(hash) AND s.id = sqlc.arg(session_id) AND (s.finished_at IS NULL OR s.finished_at > sqlc.arg(since)::timestamptz);

-- name: DropPipelineTokens :execrows
DELETE FROM pipeline_tokens t USING sessions s WHERE s.id = t.session_id AND s.finished_at < sqlc.arg(since)::timestamptz;

-- Builds of what sessions pushed.

-- name: SessionsWantingBuilds :many
-- Delivered sessions whose builds nobody looks at yet. The check run of those that
-- require one waits for it, however long the control plane was away.
SELECT s.* FROM sessions s
WHERE s.state = 'delivered' AND s.spec -> 'checks' -> 'buildkite' ->> 'builds' <> '' AND s.head_sha <> ''
  AND s.finished_at > sqlc.arg(since)::timestamptz - interval '30 days'
  AND (s.finished_at > sqlc.arg(since)::timestamptz OR s.spec -> 'checks' -> 'buildkite' ->> 'required' = 'true')
  AND NOT EXISTS (SELECT FROM session_builds b WHERE b.session_id = s.id)
ORDER BY s.finished_at LIMIT sqlc.arg(most)::integer;

-- name: InsertSessionBuild :exec
INSERT INTO session_builds (session_id, pipeline_id, slug, sha, required, creates, words, next_look_at, deadline, done_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT DO NOTHING;

-- name: SessionBuilds :many
SELECT * FROM session_builds WHERE session_id = $1 ORDER BY slug, pipeline_id;

-- name: DueSessionBuilds :many
SELECT * FROM session_builds WHERE done_at IS NULL AND next_look_at <= sqlc.arg(now)::timestamptz ORDER BY next_look_at LIMIT sqlc.arg(most)::integer;

-- name: HurrySessionBuilds :execrows
-- Something was told of a build of a commit: it is looked at now.
UPDATE session_builds SET next_look_at = sqlc.arg(now)::timestamptz WHERE done_at IS NULL AND sha = sqlc.arg(sha) AND pipeline_id = sqlc.arg(pipeline_id);

-- name: AskedSessionBuild :execrows
-- Written before a build is asked for. 0 rows: it was before.
UPDATE session_builds SET asked_at = sqlc.arg(now)::timestamptz WHERE session_id = sqlc.arg(session_id) AND pipeline_id = sqlc.arg(pipeline_id) AND asked_at IS NULL;

-- name: SetSessionBuild :exec
UPDATE session_builds SET number = sqlc.arg(number), state = sqlc.arg(state), result = sqlc.arg(result), words = sqlc.arg(words),
  changes = changes + CASE WHEN number <> sqlc.arg(number) OR state <> sqlc.arg(state) OR words <> sqlc.arg(words) OR (done_at IS NULL) <> (sqlc.narg(done_at)::timestamptz IS NULL) THEN 1 ELSE 0 END,
  looks = sqlc.arg(looks), next_look_at = sqlc.arg(next_look_at), done_at = sqlc.narg(done_at)
WHERE session_id = sqlc.arg(session_id) AND pipeline_id = sqlc.arg(pipeline_id);

-- name: UntoldSessionBuilds :many
-- Sessions whose builds GitHub is to be told of, up to a day after their time.
SELECT DISTINCT b.session_id FROM session_builds b JOIN sessions s ON s.id = b.session_id
WHERE b.told <> b.changes AND s.reported_at IS NOT NULL AND b.deadline > sqlc.arg(now)::timestamptz - interval '1 day'
  AND (b.tell_after IS NULL OR b.tell_after <= sqlc.arg(now)::timestamptz)
LIMIT sqlc.arg(most)::integer;

-- name: ToldSessionBuilds :exec
UPDATE session_builds SET told = changes, tell_after = NULL WHERE session_id = $1;

-- name: TellSessionBuildsLater :exec
UPDATE session_builds SET tell_after = sqlc.arg(after)::timestamptz WHERE session_id = sqlc.arg(session_id);

-- name: LaterEvidence :many
-- What builds of the pushed commit showed, after the manifest was sealed.
SELECT * FROM evidence WHERE session_id = $1 AND name LIKE 'build-%.json' ORDER BY name;
