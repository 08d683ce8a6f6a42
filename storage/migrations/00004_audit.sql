-- +goose Up
-- What is left of a session's events that were removed because they were old.
-- Written before the first of them is removed.
CREATE TABLE events_removed (
  session_id text PRIMARY KEY REFERENCES sessions (id),
  count      bigint NOT NULL,                      -- events 1 to count
  head       bytea NOT NULL,                       -- hash of the last of them
  points     jsonb NOT NULL,                       -- []audit.Point
  keep       bigint NOT NULL,                      -- how long events were kept then, in seconds
  removed_at timestamptz NOT NULL,
  done_at    timestamptz                           -- none of them is left
);
CREATE INDEX events_removed_open ON events_removed (session_id) WHERE done_at IS NULL;
CREATE INDEX sessions_finished ON sessions (finished_at, id) WHERE finished_at IS NOT NULL;

-- +goose Down
DROP INDEX sessions_finished;
DROP TABLE events_removed;
