-- +goose Up
-- Both tables only grow: what each publishing and each page asks of them must
-- not read them whole.
CREATE INDEX deliveries_pushes ON deliveries (repository_id, received_at) WHERE event = 'push';
CREATE INDEX sessions_newest ON sessions (created_at, id);

-- +goose Down
DROP INDEX sessions_newest, deliveries_pushes;
