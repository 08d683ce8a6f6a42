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

-- name: RepositorySigns :one
-- Whether GitHub made and signed the commit that was last delivered to a repository.
SELECT coalesce((
  SELECT receipt->>'signed' = 'true' FROM sessions WHERE repository_id = $1 AND state = 'delivered' AND receipt IS NOT NULL
  ORDER BY finished_at DESC NULLS LAST LIMIT 1
), false)::boolean AS signs;

-- name: AskSessionComment :exec
-- Somebody asked how the session stands: its comment is edited as soon as it may be.
UPDATE sessions SET comment_digest = '' WHERE id = $1;

-- name: SetSessionCheckRun :exec
UPDATE sessions SET check_run_id = $2 WHERE id = $1;

-- name: NewestBundle :one
-- The newest work a session uploaded, of whatever attempt.
SELECT * FROM bundles WHERE session_id = $1 AND sha256 <> '' ORDER BY generation DESC, created_at DESC, turn DESC LIMIT 1;

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

-- What a session used and tried, from its events. Their data is only looked
-- at, never converted, so that no event can break a page.

-- name: ModelUse :one
-- What a session's model calls came to. Those the provider refused came to
-- nothing at all; of others that it did not report, the cost is an estimate, and
-- of those going on what is held for them.
SELECT count(*) FILTER (WHERE c.state = 'reported')::bigint AS reported,
  COALESCE(sum(c.cost) FILTER (WHERE c.state = 'reported'), 0)::bigint AS cost,
  COALESCE(sum(c.input_tokens + c.cache_read_tokens + c.cache_write_tokens) FILTER (WHERE c.state = 'reported'), 0)::bigint AS input_tokens,
  COALESCE(sum(c.output_tokens) FILTER (WHERE c.state = 'reported'), 0)::bigint AS output_tokens,
  count(*) FILTER (WHERE c.nothing)::bigint AS failed,
  count(*) FILTER (WHERE c.state <> 'reported' AND NOT c.nothing)::bigint AS unreported,
  COALESCE(sum(CASE WHEN c.state = 'open' THEN c.reserved ELSE c.cost END) FILTER (WHERE c.state <> 'reported'), 0)::bigint AS unreported_cost,
  count(*) FILTER (WHERE NOT c.priced AND NOT c.nothing)::bigint AS unpriced
FROM (
  SELECT *, state = 'unreported' AND cost = 0 AND input_tokens + cache_read_tokens + cache_write_tokens + output_tokens = 0 AS nothing
  FROM model_calls WHERE session_id = $1
) c;

-- name: EgressAllowed :one
SELECT count(*)::bigint AS connections FROM events
WHERE session_id = $1 AND kind = 'egress' AND data->'allowed' = 'true';

-- name: EgressBytes :one
-- What went through the egress proxies of the attempts before one. A runner
-- tells the sums of its attempt, so that the largest counts; it is not believed
-- beyond a petabyte.
SELECT COALESCE(sum(u.sent), 0)::bigint AS sent, COALESCE(sum(u.received), 0)::bigint AS received FROM (
  SELECT max(LEAST((e.data->>'sent')::numeric, 1e15)) AS sent, max(LEAST((e.data->>'received')::numeric, 1e15)) AS received
  FROM events e WHERE e.session_id = $1 AND e.kind = 'use' AND e.generation < sqlc.arg(before) GROUP BY e.generation
) u;

-- name: EgressRefused :many
-- What was refused, the agent's and verification's first, then by how often.
SELECT COALESCE(e.data->>'host', '')::text AS host, COALESCE(e.data->>'port', '')::text AS port,
  COALESCE(e.data->>'command', '')::text AS command, (COALESCE(e.data->>'noise', '') = 'true')::boolean AS noise,
  COALESCE(e.seq > v.seq, false)::boolean AS verification,
  COALESCE(min(e.data->>'reason'), '')::text AS reason, count(*)::bigint AS times,
  (count(*) OVER ())::bigint AS destinations
FROM events e LEFT JOIN (
  SELECT p.generation, min(p.seq) AS seq FROM events p
  WHERE p.session_id = sqlc.arg(session_id) AND p.kind = 'phase' AND p.data->>'phase' = 'verifying' GROUP BY p.generation
) v ON v.generation = e.generation
WHERE e.session_id = sqlc.arg(session_id) AND e.kind = 'egress' AND e.data->'allowed' = 'false' AND e.data->>'host' <> ''
GROUP BY 1, 2, 3, 4, 5
ORDER BY 4, count(*) DESC, 1, 2, 3, 5
LIMIT sqlc.arg(at_most);

-- name: ToolCounts :one
-- What the agent did, as its harness told it.
SELECT count(*)::bigint AS calls,
  count(*) FILTER (WHERE e.data->>'command' <> '')::bigint AS commands,
  count(*) FILTER (WHERE e.data->>'command' <> '' AND (e.data->'failed' = 'true' OR e.data->>'exit_code' <> '0'))::bigint AS failed_commands,
  (SELECT count(DISTINCT f.path) FROM events t
    CROSS JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(t.data->'files') WHEN 'array' THEN t.data->'files' ELSE '[]' END) AS f (path)
    WHERE t.session_id = sqlc.arg(session_id) AND t.kind = 'tool')::bigint AS files
FROM events e WHERE e.session_id = sqlc.arg(session_id) AND e.kind = 'tool';

-- name: LastAction :one
-- The last tool call of the agent or verify command, among the events after a number.
SELECT kind, data FROM events
WHERE session_id = sqlc.arg(session_id) AND seq > sqlc.arg(after)::bigint AND (kind = 'tool' OR kind = 'command' AND data->>'step' LIKE 'verify:%')
ORDER BY seq DESC LIMIT 1;
