-- name: InsertModelCall :one
INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id;

-- name: SetSessionMeans :exec
UPDATE sessions SET budget = $2, instructions_sha = $3 WHERE id = $1;

-- name: SetSessionSpending :exec
UPDATE sessions SET spent = $2, held = $3 WHERE id = $1;

-- name: LockModelCall :one
SELECT * FROM model_calls WHERE id = $1 AND session_id = $2 FOR UPDATE;

-- name: SettleModelCall :exec
UPDATE model_calls SET state = sqlc.arg(state), cost = sqlc.arg(cost), input_tokens = sqlc.arg(input_tokens),
  cache_read_tokens = sqlc.arg(cache_read_tokens), cache_write_tokens = sqlc.arg(cache_write_tokens),
  output_tokens = sqlc.arg(output_tokens), settled_at = sqlc.arg(now)::timestamptz
WHERE id = sqlc.arg(id) AND state = 'open';

-- name: OpenModelCalls :many
-- Calls that a control plane which is gone did not settle.
SELECT id, session_id FROM model_calls WHERE state = 'open' AND started_at < sqlc.arg(before)::timestamptz ORDER BY id LIMIT 1000;

-- name: ModelSums :one
-- What a session's model calls came to. Cost is by the provider's numbers only.
SELECT count(*)::bigint AS calls,
  COALESCE(sum(cost) FILTER (WHERE state = 'reported'), 0)::bigint AS cost,
  COALESCE(sum(input_tokens + cache_read_tokens + cache_write_tokens) FILTER (WHERE state = 'reported'), 0)::bigint AS input_tokens,
  COALESCE(sum(output_tokens) FILTER (WHERE state = 'reported'), 0)::bigint AS output_tokens,
  count(*) FILTER (WHERE state <> 'reported')::bigint AS unreported,
  COALESCE(sum(CASE WHEN state = 'open' THEN reserved ELSE cost END) FILTER (WHERE state <> 'reported'), 0)::bigint AS unreported_cost,
  count(*) FILTER (WHERE NOT priced)::bigint AS unpriced
FROM model_calls WHERE session_id = $1;
