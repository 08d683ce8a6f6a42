-- What `inspect report` and its page add up. Nothing here writes.

-- name: ReportRepositories :many
-- Where sessions ended in a period, those where one did last first.
SELECT r.id, r.installation_id, r.owner, r.name FROM sessions s JOIN repositories r ON r.id = s.repository_id
WHERE s.finished_at >= sqlc.arg(since)::timestamptz AND s.finished_at < sqlc.arg(until)::timestamptz
  AND (sqlc.arg(repository)::text = '' OR lower(r.owner || '/' || r.name) = lower(sqlc.arg(repository)))
GROUP BY r.id ORDER BY max(s.finished_at) DESC, r.id LIMIT sqlc.arg(at_most);

-- name: ReportSessions :many
-- Sessions that ended in a period, everywhere or in some repositories (ids,
-- separated by commas). ready and restore are lists of nanoseconds, tools is -1
-- where events were removed, opened is null where nothing is known of a pull
-- request, paths are those of a merged one that the session opened.
WITH chosen AS (
  SELECT s.id, s.generation, s.state, s.reason, s.requester_login, s.finished_at, s.pull_request, s.spec->'harness' AS harness, r.owner, r.name, s.repository_id
  FROM sessions s JOIN repositories r ON r.id = s.repository_id
  WHERE s.finished_at >= sqlc.arg(since)::timestamptz AND s.finished_at < sqlc.arg(until)::timestamptz
    AND (sqlc.arg(everywhere)::boolean OR s.repository_id = ANY(string_to_array(sqlc.arg(repositories)::text, ',')::bigint[]))
), tries AS (
  SELECT a.session_id, count(*) AS attempts,
    jsonb_agg(a.outcome->'times'->'ready') FILTER (WHERE jsonb_typeof(a.outcome->'times'->'ready') = 'number') AS ready,
    jsonb_agg(a.restore->'duration') FILTER (WHERE jsonb_typeof(a.restore->'duration') = 'number') AS restore,
    bool_or(a.generation = c.generation AND a.taken->'stale' = 'true') AS stale,
    sum(GREATEST(extract(epoch FROM COALESCE(a.stopped_at, a.ended_at) - a.started_at), 0)) FILTER (WHERE a.heartbeat_at IS NOT NULL) AS seconds,
    count(*) FILTER (WHERE a.heartbeat_at IS NOT NULL AND COALESCE(a.stopped_at, a.ended_at) IS NULL) AS endless
  FROM attempts a JOIN chosen c ON c.id = a.session_id GROUP BY a.session_id
), calls AS (
  SELECT m.session_id, count(*) FILTER (WHERE NOT m.priced) AS unpriced,
    sum(CASE WHEN m.state = 'open' THEN m.reserved ELSE m.cost END) AS cost
  FROM model_calls m JOIN chosen c ON c.id = m.session_id
  WHERE NOT (m.state = 'unreported' AND m.cost = 0 AND m.input_tokens + m.cache_read_tokens + m.cache_write_tokens + m.output_tokens = 0)
  GROUP BY m.session_id
), tools AS (
  SELECT e.session_id, count(*) AS tools FROM events e JOIN chosen c ON c.id = e.session_id WHERE e.kind = 'tool' GROUP BY e.session_id
)
SELECT c.state, c.reason, c.requester_login, c.finished_at, c.pull_request, c.owner, c.name,
  COALESCE(NULLIF(c.harness->>'label', ''), c.harness->>'kind', '')::text AS harness, COALESCE(c.harness->>'model', '')::text AS model,
  COALESCE(t.attempts, 0)::bigint AS attempts, COALESCE(t.ready, '[]')::jsonb AS ready, COALESCE(t.restore, '[]')::jsonb AS restore,
  COALESCE(t.stale, false)::boolean AS stale, COALESCE(t.seconds, 0)::float8 AS sandbox_seconds, COALESCE(t.endless, 0)::bigint AS endless,
  COALESCE(m.unpriced, 0)::bigint AS unpriced, COALESCE(m.cost, 0)::bigint AS cost,
  (CASE WHEN EXISTS (SELECT FROM events_removed x WHERE x.session_id = c.id) THEN -1 ELSE COALESCE(u.tools, 0) END)::bigint AS tools,
  o.opened, o.opened_at, o.merged_at, o.closed_at, o.reverted_at,
  COALESCE(o.review_seconds, 0)::integer AS review_seconds, COALESCE(o.fixes, 0)::integer AS fixes,
  COALESCE(p.paths, '[]')::jsonb AS paths
FROM chosen c LEFT JOIN tries t ON t.session_id = c.id LEFT JOIN calls m ON m.session_id = c.id LEFT JOIN tools u ON u.session_id = c.id
  LEFT JOIN session_outcomes o ON o.session_id = c.id
  LEFT JOIN pulls p ON o.opened AND o.merged_at IS NOT NULL AND p.repository_id = c.repository_id AND p.number = o.pull_request
ORDER BY c.finished_at, c.id;
