-- +goose Up
ALTER TABLE attempts ADD COLUMN allocation text NOT NULL DEFAULT ''; -- that proved itself first; no other of this attempt counts
ALTER TABLE sessions ADD COLUMN queue_at timestamptz;                -- since when queue_reason is what it is
ALTER TABLE sessions ADD COLUMN queue_position integer NOT NULL DEFAULT 0; -- among the sessions that wait; 0: not known
ALTER TABLE sessions ADD COLUMN waiting_since timestamptz NOT NULL DEFAULT now(); -- for the attempt that is to come or has not begun
ALTER TABLE sessions ADD COLUMN pull_closed_at timestamptz;          -- its pull request was merged or closed
ALTER TABLE attempts ADD COLUMN hopeless boolean NOT NULL DEFAULT false; -- no node could take it as they are: it holds nobody up
ALTER TABLE nodes ADD COLUMN draining boolean NOT NULL DEFAULT false; -- no new sessions; running ones finish

-- +goose Down
ALTER TABLE nodes DROP COLUMN draining;
ALTER TABLE attempts DROP COLUMN hopeless;
ALTER TABLE sessions DROP COLUMN pull_closed_at;
ALTER TABLE sessions DROP COLUMN waiting_since;
ALTER TABLE sessions DROP COLUMN queue_position;
ALTER TABLE sessions DROP COLUMN queue_at;
ALTER TABLE attempts DROP COLUMN allocation;
