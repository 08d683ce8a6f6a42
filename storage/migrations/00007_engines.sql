-- +goose Up
ALTER TABLE attempts ADD COLUMN allocation text NOT NULL DEFAULT ''; -- that proved itself first; no other of this attempt counts
ALTER TABLE sessions ADD COLUMN queue_at timestamptz;                -- since when queue_reason is what it is
ALTER TABLE sessions ADD COLUMN queue_position integer NOT NULL DEFAULT 0; -- among the sessions that wait; 0: not known
ALTER TABLE nodes ADD COLUMN draining boolean NOT NULL DEFAULT false; -- no new sessions; running ones finish

-- +goose Down
ALTER TABLE nodes DROP COLUMN draining;
ALTER TABLE sessions DROP COLUMN queue_position;
ALTER TABLE sessions DROP COLUMN queue_at;
ALTER TABLE attempts DROP COLUMN allocation;
