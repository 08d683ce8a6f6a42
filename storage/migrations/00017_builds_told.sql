-- +goose Up
-- What GitHub was told of a build: writing down that it has ended and telling it
-- are two steps, and the second may fail.
ALTER TABLE session_builds
  ADD COLUMN told integer NOT NULL DEFAULT -1,     -- of changes, the last that was told
  ADD COLUMN tell_after timestamptz;               -- not tried again before
UPDATE session_builds SET told = changes WHERE done_at < now() - interval '1 day';

-- +goose Down
ALTER TABLE session_builds DROP COLUMN told, DROP COLUMN tell_after;
