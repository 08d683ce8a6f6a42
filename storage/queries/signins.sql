-- Who is signed in to people's pages.

-- name: AddSignin :exec
INSERT INTO signins (cookie, user_id, login, created_at, expires_at) VALUES ($1, $2, $3, $4, $5);

-- name: Signin :one
SELECT * FROM signins WHERE cookie = sqlc.arg(cookie) AND expires_at > sqlc.arg(now)::timestamptz;

-- name: EndSignin :exec
DELETE FROM signins WHERE cookie = $1;

-- name: EndOldSignins :exec
DELETE FROM signins WHERE expires_at <= $1;
