-- What `inspect env egress` reads.

-- name: SessionsStartingWith :many
-- The ids that begin with some letters; two are enough to say that they are not one.
SELECT id FROM sessions WHERE starts_with(id, sqlc.arg(beginning)::text) ORDER BY id = sqlc.arg(beginning)::text DESC, id LIMIT 2;

-- name: EgressEvents :many
SELECT seq, generation, kind, data, at FROM events
WHERE session_id = sqlc.arg(session_id) AND kind IN ('egress', 'use') AND seq > sqlc.arg(after)::bigint
ORDER BY seq LIMIT sqlc.arg(at_most);
