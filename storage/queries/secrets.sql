-- Who changes a secret takes the lock alone; who decides something by a
-- secret's version and writes that down takes it with others. Either does so
-- before it reads.

-- name: LockSecrets :exec
SELECT pg_advisory_xact_lock(5284718520010003);

-- name: ShareSecrets :exec
SELECT pg_advisory_xact_lock_shared(5284718520010003);

-- name: GetSecret :one
SELECT * FROM secrets WHERE scope = $1 AND scope_id = $2 AND name = $3;

-- name: CountSecrets :one
SELECT count(*) FROM secrets WHERE scope = $1 AND scope_id = $2;

-- name: NextSecretVersion :one
SELECT nextval('secret_versions')::bigint;

-- name: PutSecret :exec
INSERT INTO secrets (scope, scope_id, name, version, sealed, key_id, set_by, set_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (scope, scope_id, name) DO UPDATE SET
  version = EXCLUDED.version, sealed = EXCLUDED.sealed, key_id = EXCLUDED.key_id, set_by = EXCLUDED.set_by, set_at = EXCLUDED.set_at;

-- name: ResealSecret :exec
UPDATE secrets SET sealed = $2, key_id = $3 WHERE version = $1;

-- name: DeleteSecret :execrows
DELETE FROM secrets WHERE scope = $1 AND scope_id = $2 AND name = $3;

-- name: AllSecrets :many
SELECT x.*, COALESCE(r.owner || '/' || r.name, i.account, '')::text AS place
FROM secrets x
  LEFT JOIN repositories r ON x.scope = 'repository' AND r.id = x.scope_id
  LEFT JOIN installations i ON x.scope = 'installation' AND i.id = x.scope_id
ORDER BY x.scope DESC, place, x.scope_id, x.name;

-- name: SecretsAfter :many
SELECT * FROM secrets WHERE version > $1 ORDER BY version;

-- name: RepositorySecrets :many
-- Of the names, those the repository has.
SELECT scope, scope_id, name, version, sealed, key_id FROM repository_secrets
WHERE repository_id = sqlc.arg(repository_id) AND name IN (SELECT jsonb_array_elements_text(sqlc.arg(names)::jsonb));

-- name: RetireStaleSnapshots :many
-- Snapshots that may hold a value which is not the repository's any more.
UPDATE snapshots s SET state = 'retired', is_current = false, error = 'a secret it was prepared with has changed',
  renew = s.is_current OR s.state = 'building'
FROM environments e
WHERE e.id = s.environment_id AND s.state IN ('building', 'ready') AND EXISTS (
  SELECT 1 FROM jsonb_each_text(s.secrets) g
    LEFT JOIN repository_secrets x ON x.repository_id = e.repository_id AND x.name = g.key
  WHERE x.version IS DISTINCT FROM g.value::bigint
)
RETURNING s.id;

-- name: AddSnapshotSecrets :exec
UPDATE snapshots SET secrets = secrets || sqlc.arg(versions)::jsonb WHERE id = sqlc.arg(id);

-- name: TakeRenewals :many
-- Environments whose snapshots were retired for a changed secret, with the
-- commit of the newest of them. Only the one a repository used last is of use.
WITH taken AS (
  UPDATE snapshots SET renew = false WHERE renew RETURNING environment_id, commit_sha, created_at
)
SELECT DISTINCT ON (e.id) e.id AS environment_id, t.commit_sha, r.default_branch
FROM taken t JOIN environments e ON e.id = t.environment_id JOIN repositories r ON r.id = e.repository_id
WHERE r.removed_at IS NULL AND NOT EXISTS (
  SELECT 1 FROM environments later WHERE later.repository_id = e.repository_id AND later.used_at > e.used_at
)
ORDER BY e.id, t.created_at DESC;

-- name: RepositoriesNamed :many
SELECT id FROM repositories WHERE lower(owner) = lower(sqlc.arg(owner)) AND lower(name) = lower(sqlc.arg(name)) AND removed_at IS NULL ORDER BY id;

-- name: InstallationsOf :many
SELECT id FROM installations WHERE lower(account) = lower(sqlc.arg(account)) AND deleted_at IS NULL ORDER BY id;

-- name: SecretsGiven :many
-- Our own events of what an attempt was given.
SELECT data FROM events WHERE session_id = $1 AND generation = $2 AND kind = 'secrets' AND number IS NULL ORDER BY seq;
