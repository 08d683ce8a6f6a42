-- +goose Up
ALTER TABLE bundles ADD COLUMN replaced bigint NOT NULL DEFAULT 0; -- bytes of what was stored for this turn before and is still kept

-- +goose Down
ALTER TABLE bundles DROP COLUMN replaced;
