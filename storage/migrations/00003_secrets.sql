-- +goose Up
-- Every value a secret ever gets has another version; they grow in the order in
-- which they were set.
CREATE SEQUENCE secret_versions;

CREATE TABLE secrets (
  scope    text NOT NULL CHECK (scope IN ('repository', 'installation', 'all')),
  scope_id bigint NOT NULL,                        -- id of the repository or the installation; 0
  name     text NOT NULL,
  version  bigint NOT NULL UNIQUE,
  sealed   bytea NOT NULL,                         -- see package scheduler/secrets
  key_id   text NOT NULL,                          -- of the key it is sealed with
  set_by   text NOT NULL,                          -- account on the machine
  set_at   timestamptz NOT NULL,
  PRIMARY KEY (scope, scope_id, name)
);

-- The secrets a repository has: of each name the one with the narrowest scope.
CREATE VIEW repository_secrets AS
SELECT DISTINCT ON (r.id, x.name) r.id AS repository_id, x.*
FROM repositories r JOIN secrets x
  ON x.scope = 'repository' AND x.scope_id = r.id
  OR x.scope = 'installation' AND x.scope_id = r.installation_id
  OR x.scope = 'all'
ORDER BY r.id, x.name, CASE x.scope WHEN 'repository' THEN 0 WHEN 'installation' THEN 1 ELSE 2 END;

ALTER TABLE snapshots
  ADD COLUMN secrets jsonb NOT NULL DEFAULT '{}',    -- version by name of those given out while it was prepared
  ADD COLUMN renew   boolean NOT NULL DEFAULT false; -- retired for a changed secret; another is to be prepared
CREATE INDEX snapshots_renew ON snapshots (environment_id) WHERE renew;

-- +goose Down
ALTER TABLE snapshots DROP COLUMN secrets, DROP COLUMN renew;
DROP VIEW repository_secrets;
DROP TABLE secrets;
DROP SEQUENCE secret_versions;
