-- +goose Up
-- The head of a repository's default branch is looked at from time to time, and
-- after a push.
ALTER TABLE repositories
  ADD COLUMN head_sha text NOT NULL DEFAULT '',         -- at the last look
  ADD COLUMN head_environment text NOT NULL DEFAULT '', -- id of what the configuration there describes; '': nothing
  ADD COLUMN head_words text NOT NULL DEFAULT '',       -- why it describes nothing
  ADD COLUMN looked_at timestamptz,                     -- the last look
  ADD COLUMN look_at timestamptz,                       -- the next one; NULL: none
  ADD COLUMN look_tries integer NOT NULL DEFAULT 0,     -- failed ones in a row
  ADD COLUMN look_error text NOT NULL DEFAULT '',       -- of the last of them
  ADD COLUMN build text NOT NULL DEFAULT '';            -- a person asked for a snapshot: 'build', or 'afresh' even if nothing has changed
CREATE INDEX repositories_look ON repositories (look_at) WHERE look_at IS NOT NULL;

ALTER TABLE snapshots
  ADD COLUMN from_id text NOT NULL DEFAULT '',          -- the snapshot it is made from; '': afresh
  ADD COLUMN depth integer NOT NULL DEFAULT 1,          -- how many were made from one another, it included
  ADD COLUMN cold boolean NOT NULL DEFAULT false,       -- for sessions of its commit alone: never current
  ADD COLUMN newest_at timestamptz;                     -- when its commit was last seen at the head of the default branch
UPDATE snapshots SET newest_at = COALESCE(published_at, created_at);
CREATE INDEX snapshots_building ON snapshots (environment_id, node) WHERE state = 'building';

-- How the refreshes of an environment on a node go.
CREATE TABLE environment_nodes (
  environment_id text NOT NULL REFERENCES environments (id),
  node           text NOT NULL,
  wanted_branch  text NOT NULL DEFAULT '',              -- what is to be refreshed to after the refresh that goes on
  wanted_commit  text NOT NULL DEFAULT '',              -- '': nothing
  wanted_afresh  boolean NOT NULL DEFAULT false,
  afresh         boolean NOT NULL DEFAULT false,        -- its setup does not run a second time: never made from an earlier snapshot
  stale_since    timestamptz,                           -- the first failure since the last success
  failures       integer NOT NULL DEFAULT 0,            -- since then
  failed_commit  text NOT NULL DEFAULT '',
  error          text NOT NULL DEFAULT '',              -- last lines of what failed
  retry_at       timestamptz,                           -- the commit is not tried again by itself before
  PRIMARY KEY (environment_id, node)
);

ALTER TABLE node_work ADD COLUMN drift jsonb;           -- wire.Drift, of a fetch

ALTER TABLE attempts
  ADD COLUMN taken jsonb,                               -- scheduler.Taken: which snapshot, and why
  ADD COLUMN drifted jsonb,                             -- wire.Drifted
  ADD COLUMN fork jsonb,                                -- wire.Fork: what its clone is made of in place of the snapshot
  ADD COLUMN stopped_at timestamptz,                    -- the engine said that nothing of it runs any more
  ADD COLUMN keep_until timestamptz;                    -- its clones are not discarded before
CREATE INDEX attempts_kept ON attempts (keep_until) WHERE keep_until IS NOT NULL AND reaped_at IS NULL;

ALTER TABLE sessions
  ADD COLUMN start_from jsonb,                          -- wire.Fork: the turn it goes on from
  ADD COLUMN rewound integer NOT NULL DEFAULT 0;        -- what attempts up to this one did is not gone on from

-- +goose Down
ALTER TABLE sessions DROP COLUMN start_from, DROP COLUMN rewound;
ALTER TABLE attempts DROP COLUMN taken, DROP COLUMN drifted, DROP COLUMN fork, DROP COLUMN stopped_at, DROP COLUMN keep_until;
ALTER TABLE node_work DROP COLUMN drift;
DROP TABLE environment_nodes;
ALTER TABLE snapshots DROP COLUMN from_id, DROP COLUMN depth, DROP COLUMN cold, DROP COLUMN newest_at;
ALTER TABLE repositories DROP COLUMN head_sha, DROP COLUMN head_environment, DROP COLUMN head_words, DROP COLUMN looked_at, DROP COLUMN look_at, DROP COLUMN look_tries, DROP COLUMN look_error, DROP COLUMN build;
