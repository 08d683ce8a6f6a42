-- The requesters of sessions.

-- name: AddSessionPerson :exec
INSERT INTO session_people (session_id, user_id, login, role, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (session_id, user_id, role) DO NOTHING;

-- name: SessionPeople :many
SELECT * FROM session_people WHERE session_id = $1 ORDER BY at, user_id, role;
