-- +goose Up
-- Up to when everything that GitHub told, or failed to tell, was taken in.
CREATE TABLE watermarks (
  name text PRIMARY KEY, -- deliveries
  at   timestamptz NOT NULL
);
ALTER TABLE repositories ADD COLUMN issues_seen_at timestamptz; -- open labelled issues were looked for
ALTER TABLE sessions ADD COLUMN pull_seen_at timestamptz;       -- the fate of its pull request was read

-- +goose Down
ALTER TABLE sessions DROP COLUMN pull_seen_at;
ALTER TABLE repositories DROP COLUMN issues_seen_at;
DROP TABLE watermarks;
