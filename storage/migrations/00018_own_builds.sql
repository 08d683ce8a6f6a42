-- +goose Up
-- Whether a build is of what a session pushed.
CREATE INDEX sessions_head ON sessions (head_sha) WHERE head_sha <> '';
CREATE INDEX branches_name ON branches (name);

-- +goose Down
DROP INDEX sessions_head;
DROP INDEX branches_name;
