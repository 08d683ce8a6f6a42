-- The record of events: read as a whole, and removed when it is old.

-- name: AuditSession :one
-- What is kept of a session beside its events.
SELECT s.id, s.state, s.reason, s.created_at, s.finished_at, s.events_count, s.events_head, s.receipt, r.owner, r.name,
  e.count AS removed_count, e.head AS removed_head, e.points AS removed_points, e.keep AS removed_keep, e.removed_at
FROM sessions s JOIN repositories r ON r.id = s.repository_id LEFT JOIN events_removed e ON e.session_id = s.id
WHERE s.id = $1;

-- name: AuditEvents :many
-- A moment that is none fits no hash; it must not keep the rest from being read.
SELECT seq, generation, number, kind, data, (CASE WHEN isfinite(at) THEN at ELSE 'epoch' END)::timestamptz AS at, hash
FROM events WHERE session_id = sqlc.arg(session_id) AND seq >= sqlc.arg(first)::bigint ORDER BY seq LIMIT sqlc.arg(at_most);

-- name: AuditSessions :many
-- Sessions that were not over before a moment, by id.
SELECT id FROM sessions
WHERE id > sqlc.arg(after) AND (finished_at IS NULL OR finished_at >= sqlc.arg(since)::timestamptz)
ORDER BY id LIMIT sqlc.arg(at_most);

-- name: AuditSessionsLike :many
SELECT id FROM sessions WHERE starts_with(id, sqlc.arg(prefix)::text) ORDER BY id LIMIT 2;

-- name: OldSessions :many
-- Sessions that ended before a moment, were reported and still have their events.
SELECT s.id, s.finished_at::timestamptz AS finished_at FROM sessions s
WHERE s.finished_at < sqlc.arg(before)::timestamptz AND (s.finished_at, s.id) > (sqlc.arg(after)::timestamptz, sqlc.arg(after_id)::text)
  AND s.reported_at IS NOT NULL AND s.events_count > 0
  AND NOT EXISTS (SELECT 1 FROM events_removed e WHERE e.session_id = s.id)
ORDER BY s.finished_at, s.id LIMIT sqlc.arg(at_most);

-- name: InsertEventsRemoved :exec
INSERT INTO events_removed (session_id, count, head, points, keep, removed_at)
VALUES (sqlc.arg(session_id), sqlc.arg(count), sqlc.arg(head), sqlc.arg(points), sqlc.arg(keep), sqlc.arg(now)::timestamptz);

-- name: OpenRemovals :many
SELECT session_id, count FROM events_removed WHERE done_at IS NULL ORDER BY session_id LIMIT sqlc.arg(at_most);

-- name: DeleteEvents :execrows
DELETE FROM events e WHERE e.session_id = sqlc.arg(session_id) AND e.seq IN (
  SELECT o.seq FROM events o WHERE o.session_id = sqlc.arg(session_id) AND o.seq BETWEEN 1 AND sqlc.arg(count)::bigint
  ORDER BY o.seq LIMIT sqlc.arg(at_most)
);

-- name: EndRemoval :exec
UPDATE events_removed SET done_at = sqlc.arg(now)::timestamptz WHERE session_id = sqlc.arg(session_id);

-- name: LastStateEvent :one
-- The event that brought a session into its state.
SELECT seq, hash FROM events WHERE session_id = $1 AND kind = 'state' ORDER BY seq DESC LIMIT 1;
