-- What `inspect report` and its page add up.

-- name: ReportRepositories :many
-- Where sessions ended in a period, those where one did last first.
SELECT r.id, r.installation_id, r.owner, r.name FROM sessions s JOIN repositories r ON r.id = s.repository_id
WHERE s.finished_at >= sqlc.arg(since)::timestamptz AND s.finished_at < sqlc.arg(until)::timestamptz
  AND (sqlc.arg(repository)::text = '' OR lower(r.owner || '/' || r.name) = lower(sqlc.arg(repository)))
GROUP BY r.id ORDER BY max(s.finished_at) DESC, r.id LIMIT sqlc.arg(at_most);

-- name: ReportBegin :one
-- When the first session ended since a time.
SELECT s.finished_at FROM sessions s WHERE s.finished_at >= sqlc.arg(since)::timestamptz ORDER BY s.finished_at LIMIT 1;

-- name: ReportSessions :many
-- Sessions that ended in a period, everywhere or in some repositories (ids,
-- separated by commas). ready and restore are lists of nanoseconds, tools is -1
-- where events were removed, opened is null where nothing is known of a pull
-- request, paths are those of a merged one that the session opened. What is summed
-- up already is not read anew: without the offset the planner may compute the figures
-- of all sessions there are and join them.
SELECT s.state, s.reason, s.requester_login, s.finished_at, s.pull_request, r.owner, r.name,
  COALESCE(z.harness, f.harness, '')::text AS harness, COALESCE(z.model, f.model, '')::text AS model,
  COALESCE(z.attempts, f.attempts, 0)::bigint AS attempts, COALESCE(z.ready, f.ready, '[]')::jsonb AS ready, COALESCE(z.restore, f.restore, '[]')::jsonb AS restore,
  COALESCE(z.stale, f.stale, false)::boolean AS stale, COALESCE(z.sandbox_seconds, f.sandbox_seconds, 0)::float8 AS sandbox_seconds, COALESCE(f.endless, 0)::bigint AS endless,
  COALESCE(z.unpriced, f.unpriced, 0)::bigint AS unpriced, COALESCE(z.cost, f.cost, 0)::bigint AS cost, COALESCE(z.tools, f.tools, 0)::bigint AS tools,
  o.opened, o.opened_at, o.merged_at, o.closed_at, o.reverted_at,
  COALESCE(o.review_seconds, 0)::integer AS review_seconds, COALESCE(o.fixes, 0)::integer AS fixes,
  COALESCE(p.paths, '[]')::jsonb AS paths
FROM sessions s JOIN repositories r ON r.id = s.repository_id
  LEFT JOIN session_sums z ON z.session_id = s.id AND z.finished_at = s.finished_at
  LEFT JOIN LATERAL (SELECT * FROM session_figures x WHERE z.session_id IS NULL AND x.id = s.id OFFSET 0) f ON true
  LEFT JOIN session_outcomes o ON o.session_id = s.id
  LEFT JOIN pulls p ON o.opened AND o.merged_at IS NOT NULL AND p.repository_id = s.repository_id AND p.number = o.pull_request
WHERE s.finished_at >= sqlc.arg(since)::timestamptz AND s.finished_at < sqlc.arg(until)::timestamptz
  AND (sqlc.arg(everywhere)::boolean OR s.repository_id = ANY(string_to_array(sqlc.arg(repositories)::text, ',')::bigint[]))
ORDER BY s.finished_at, s.id;

-- name: SumSessions :execrows
-- Sums up sessions that ended before a time, the first to end first, and says how
-- many. What still goes on in one (a call that is not settled, an attempt whose end
-- nobody told) leaves it for later.
INSERT INTO session_sums (session_id, finished_at, harness, model, attempts, ready, restore, stale, sandbox_seconds, unpriced, cost, tools)
SELECT f.id, f.finished_at, f.harness, f.model, f.attempts, f.ready, f.restore, f.stale, f.sandbox_seconds, f.unpriced, f.cost, f.tools
FROM (
  SELECT s.id FROM sessions s LEFT JOIN session_sums z ON z.session_id = s.id AND z.finished_at = s.finished_at
  WHERE s.finished_at < sqlc.arg(before)::timestamptz AND s.reported_at IS NOT NULL AND z.session_id IS NULL
    AND NOT EXISTS (SELECT FROM model_calls c WHERE c.session_id = s.id AND c.state = 'open')
    AND NOT EXISTS (SELECT FROM attempts a WHERE a.session_id = s.id AND a.heartbeat_at IS NOT NULL AND COALESCE(a.stopped_at, a.ended_at) IS NULL)
  ORDER BY s.finished_at LIMIT sqlc.arg(at_most)
) AS old JOIN session_figures f ON f.id = old.id
ON CONFLICT (session_id) DO UPDATE SET finished_at = EXCLUDED.finished_at, harness = EXCLUDED.harness, model = EXCLUDED.model, attempts = EXCLUDED.attempts,
  ready = EXCLUDED.ready, restore = EXCLUDED.restore, stale = EXCLUDED.stale, sandbox_seconds = EXCLUDED.sandbox_seconds, unpriced = EXCLUDED.unpriced,
  cost = EXCLUDED.cost, tools = GREATEST(EXCLUDED.tools, session_sums.tools);
