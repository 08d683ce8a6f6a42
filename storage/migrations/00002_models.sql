-- +goose Up
-- Money is in billionths of a US dollar.
ALTER TABLE sessions
  ADD COLUMN budget bigint NOT NULL DEFAULT 0,     -- of all model calls together
  ADD COLUMN spent  bigint NOT NULL DEFAULT 0,     -- by calls that are over, unreported ones at what they must have cost
  ADD COLUMN held   bigint NOT NULL DEFAULT 0,     -- set aside for calls that are going on
  ADD COLUMN instructions_sha text NOT NULL DEFAULT ''; -- commit of the default branch whose AGENTS.md counts; '' is base_sha

-- One row for each call of a model: written before it is made, settled after it.
CREATE TABLE model_calls (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_id   text NOT NULL REFERENCES sessions (id),
  generation   integer NOT NULL,
  model        text NOT NULL,
  priced       boolean NOT NULL,                   -- there was a price for the model
  reserved     bigint NOT NULL,
  input        bigint NOT NULL,                    -- what it costs though nothing comes back: its input
  state        text NOT NULL DEFAULT 'open',       -- open, reported, unreported
  cost         bigint NOT NULL DEFAULT 0,
  input_tokens bigint NOT NULL DEFAULT 0,          -- those of the cache not included
  cache_read_tokens  bigint NOT NULL DEFAULT 0,
  cache_write_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  started_at   timestamptz NOT NULL,
  settled_at   timestamptz
);
CREATE INDEX model_calls_session ON model_calls (session_id, id);
CREATE INDEX model_calls_open ON model_calls (id) WHERE state = 'open';

-- What is summed up for a session's page and its evidence.
CREATE INDEX events_kind ON events (session_id, kind) WHERE kind IN ('egress', 'tool', 'phase');

-- +goose Down
DROP INDEX events_kind;
DROP TABLE model_calls;
ALTER TABLE sessions DROP COLUMN budget, DROP COLUMN spent, DROP COLUMN held, DROP COLUMN instructions_sha;
