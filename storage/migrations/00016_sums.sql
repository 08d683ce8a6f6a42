-- +goose Up
-- What a session's attempts, model calls and events come to in a report. Reading
-- all of them anew for each report takes seconds where there are many sessions;
-- once a session has ended for good it does not change any more.
CREATE VIEW session_figures AS
SELECT s.id, s.finished_at,
  COALESCE(NULLIF(s.spec->'harness'->>'label', ''), s.spec->'harness'->>'kind', '') AS harness, COALESCE(s.spec->'harness'->>'model', '') AS model,
  COALESCE(t.attempts, 0) AS attempts, COALESCE(t.ready, '[]') AS ready, COALESCE(t.restore, '[]') AS restore, COALESCE(t.stale, false) AS stale,
  COALESCE(t.seconds, 0)::float8 AS sandbox_seconds, COALESCE(t.endless, 0) AS endless,
  COALESCE(m.unpriced, 0) AS unpriced, COALESCE(m.cost, 0)::bigint AS cost,
  CASE WHEN EXISTS (SELECT FROM events_removed x WHERE x.session_id = s.id) THEN -1
    ELSE (SELECT count(*) FROM events e WHERE e.session_id = s.id AND e.kind = 'tool') END AS tools
FROM sessions s
LEFT JOIN LATERAL (
  SELECT count(*) AS attempts,
    jsonb_agg(a.outcome->'times'->'ready') FILTER (WHERE jsonb_typeof(a.outcome->'times'->'ready') = 'number') AS ready,
    jsonb_agg(a.restore->'duration') FILTER (WHERE jsonb_typeof(a.restore->'duration') = 'number') AS restore,
    bool_or(a.generation = s.generation AND a.taken->'stale' = 'true') AS stale,
    sum(GREATEST(extract(epoch FROM COALESCE(a.stopped_at, a.ended_at) - a.started_at), 0)) FILTER (WHERE a.heartbeat_at IS NOT NULL) AS seconds,
    count(*) FILTER (WHERE a.heartbeat_at IS NOT NULL AND COALESCE(a.stopped_at, a.ended_at) IS NULL) AS endless
  FROM attempts a WHERE a.session_id = s.id
) t ON true
LEFT JOIN LATERAL (
  SELECT count(*) FILTER (WHERE NOT c.priced) AS unpriced,
    sum(CASE WHEN c.state = 'open' THEN c.reserved ELSE c.cost END) AS cost
  FROM model_calls c WHERE c.session_id = s.id
    AND NOT (c.state = 'unreported' AND c.cost = 0 AND c.input_tokens + c.cache_read_tokens + c.cache_write_tokens + c.output_tokens = 0)
) m ON true;

-- session_figures of sessions that ended a while ago, written by the control plane.
CREATE TABLE session_sums (
  session_id      text PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
  finished_at     timestamptz NOT NULL,   -- of the end that these are of; a session that goes on has another one later
  harness         text NOT NULL,
  model           text NOT NULL,
  attempts        bigint NOT NULL,
  ready           jsonb NOT NULL,         -- nanoseconds
  restore         jsonb NOT NULL,         -- nanoseconds
  stale           boolean NOT NULL,
  sandbox_seconds float8 NOT NULL,
  unpriced        bigint NOT NULL,
  cost            bigint NOT NULL,        -- billionths of a US dollar
  tools           bigint NOT NULL         -- -1: its events were removed before
);

-- +goose Down
DROP TABLE session_sums;
DROP VIEW session_figures;
