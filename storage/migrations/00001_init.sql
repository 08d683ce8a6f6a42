-- +goose Up
CREATE TYPE session_state AS ENUM (
  'queued', 'placing', 'restoring', 'working', 'verifying', 'publishing', 'needs_approval',
  'delivered', 'no_change', 'failed', 'stopped', 'timed_out', 'over_budget', 'infrastructure'
);

-- A webhook delivery as it came. Stored in the transaction that enqueues its job.
CREATE TABLE deliveries (
  guid            text PRIMARY KEY,               -- X-GitHub-Delivery
  event           text NOT NULL,
  action          text NOT NULL DEFAULT '',
  installation_id bigint NOT NULL DEFAULT 0,
  repository_id   bigint NOT NULL DEFAULT 0,
  sender_id       bigint NOT NULL DEFAULT 0,
  payload         bytea NOT NULL,                 -- the raw body whose signature was checked
  status          text NOT NULL DEFAULT 'pending', -- pending, done, ignored, unknown, undecodable, failed
  note            text NOT NULL DEFAULT '',
  received_at     timestamptz NOT NULL DEFAULT now(),
  remote_addr     inet,
  handled_at      timestamptz,
  tries           integer NOT NULL DEFAULT 0,     -- times its job began
  next_try_at     timestamptz NOT NULL DEFAULT now() + interval '15 seconds' -- the sweeper enqueues it again after this
);
CREATE INDEX deliveries_pending ON deliveries (next_try_at) WHERE status = 'pending';

-- One row for each wish of a person, keyed by its effect: the same wish that
-- arrives as two deliveries is one row.
CREATE TABLE intents (
  key           text PRIMARY KEY,
  delivery_guid text NOT NULL,
  repository_id bigint NOT NULL,
  issue_number  integer NOT NULL DEFAULT 0,
  actor_id      bigint NOT NULL,
  actor_login   text NOT NULL,
  kind          text NOT NULL,                     -- label, command
  outcome       text NOT NULL DEFAULT 'pending',   -- pending, started, denied, replied, refused, duplicate
  note          text NOT NULL DEFAULT '',
  session_id    text,
  created_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE installations (
  id           bigint PRIMARY KEY,
  account      text NOT NULL,
  suspended_at timestamptz,
  deleted_at   timestamptz,
  updated_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE repositories (
  id              bigint PRIMARY KEY,
  installation_id bigint NOT NULL,
  owner           text NOT NULL,
  name            text NOT NULL,
  default_branch  text NOT NULL DEFAULT '',
  removed_at      timestamptz,
  updated_at      timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE environments (
  id            text PRIMARY KEY,                  -- env-<repository id>-<config digest, 8 hex digits>
  repository_id bigint NOT NULL REFERENCES repositories (id),
  config_digest text NOT NULL,
  spec          jsonb NOT NULL,                    -- the effective spec it was made for
  created_at    timestamptz NOT NULL DEFAULT now(),
  used_at       timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nodes (
  name       text PRIMARY KEY,
  token_hash bytea NOT NULL,
  state      jsonb NOT NULL DEFAULT '{}',
  seen_at    timestamptz
);

CREATE TABLE snapshots (
  id             text PRIMARY KEY,
  environment_id text NOT NULL REFERENCES environments (id),
  node           text NOT NULL,
  generation     integer NOT NULL,
  commit_sha     text NOT NULL,
  config_digest  text NOT NULL,
  state          text NOT NULL DEFAULT 'building', -- building, ready, retired, failed
  is_current     boolean NOT NULL DEFAULT false,
  store          text NOT NULL DEFAULT '',
  bytes          bigint NOT NULL DEFAULT 0,
  phases         jsonb,
  error          text NOT NULL DEFAULT '',
  created_at     timestamptz NOT NULL DEFAULT now(),
  published_at   timestamptz,
  UNIQUE (environment_id, node, generation)
);
CREATE UNIQUE INDEX snapshots_current ON snapshots (environment_id, node) WHERE is_current;

CREATE TABLE node_work (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  node        text NOT NULL,
  kind        text NOT NULL,
  key         text NOT NULL UNIQUE,                -- one open item per wish, e.g. refresh:<snapshot id>
  data        jsonb NOT NULL,
  state       text NOT NULL DEFAULT 'pending',     -- pending, taken, done, failed
  words       text NOT NULL DEFAULT '',
  attempts    integer NOT NULL DEFAULT 0,
  lease_until timestamptz,
  created_at  timestamptz NOT NULL DEFAULT now(),
  done_at     timestamptz
);
CREATE INDEX node_work_open ON node_work (node, id) WHERE state IN ('pending', 'taken');

CREATE TABLE sessions (
  id              text PRIMARY KEY,                -- ten characters a-z2-7
  installation_id bigint NOT NULL,
  repository_id   bigint NOT NULL REFERENCES repositories (id),
  issue_number    integer NOT NULL,
  intent_key      text NOT NULL UNIQUE,
  requester_id    bigint NOT NULL,
  requester_login text NOT NULL,
  title           text NOT NULL,                   -- of the issue, as delivered
  request         text NOT NULL,                   -- what the person asked for, as delivered
  prompt          text NOT NULL,                   -- what the agent is told
  context_digest  text NOT NULL DEFAULT '',
  base_branch     text NOT NULL,
  base_sha        text NOT NULL,
  environment_id  text NOT NULL REFERENCES environments (id),
  spec            jsonb NOT NULL,                  -- effective spec, pinned
  spec_source     text NOT NULL,                   -- ".inspect.yml" or "detected from go.mod"
  state           session_state NOT NULL DEFAULT 'queued',
  reason          text NOT NULL DEFAULT '',        -- code, see package scheduler
  words           text NOT NULL DEFAULT '',        -- the same for people
  queue_reason    text NOT NULL DEFAULT '',
  stop_at         timestamptz,                     -- somebody asked for an end
  stop_by         text NOT NULL DEFAULT '',        -- login of who asked
  stop_words      text NOT NULL DEFAULT '',
  priority        integer NOT NULL DEFAULT 0,
  version         bigint NOT NULL DEFAULT 1,       -- compare-and-set
  generation      integer NOT NULL DEFAULT 0,      -- of the current attempt; 0 before the first
  snapshot_id     text NOT NULL DEFAULT '',
  node            text NOT NULL DEFAULT '',
  outcome         jsonb,                           -- wire.Outcome of the attempt that counts
  receipt         jsonb,                           -- scheduler.Receipt
  comment_id      bigint NOT NULL DEFAULT 0,
  comment_digest  text NOT NULL DEFAULT '',        -- of the text last sent
  comment_at      timestamptz,
  check_run_id    bigint NOT NULL DEFAULT 0,
  branch          text NOT NULL DEFAULT '',
  head_sha        text NOT NULL DEFAULT '',
  pull_request    integer NOT NULL DEFAULT 0,
  events_count    bigint NOT NULL DEFAULT 0,
  events_head     bytea NOT NULL DEFAULT '',       -- hash of the last event
  created_at      timestamptz NOT NULL DEFAULT now(),
  state_at        timestamptz NOT NULL DEFAULT now(),
  started_at      timestamptz,
  finished_at     timestamptz,
  reported_at     timestamptz,                     -- the end was told on GitHub
  effect_tries    integer NOT NULL DEFAULT 0,      -- failed tries of the present step, for its backoff
  report_tries    integer NOT NULL DEFAULT 0,      -- failed reports in a row
  report_after    timestamptz,                     -- not to be reported before
  deadline        timestamptz NOT NULL,            -- of the state: the sweeper acts after it
  next_check_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sessions_open ON sessions (next_check_at) WHERE reported_at IS NULL;
CREATE INDEX sessions_issue ON sessions (repository_id, issue_number);

CREATE TABLE attempts (
  session_id     text NOT NULL REFERENCES sessions (id),
  generation     integer NOT NULL,
  engine         text NOT NULL,
  engine_ref     jsonb,                            -- what the engine needs to find it again
  node           text NOT NULL DEFAULT '',
  snapshot_id    text NOT NULL DEFAULT '',
  secret_hash    bytea,                            -- one-time secret; NULL once used
  token_hash     bytea,
  token_expires  timestamptz,
  prev_token_hash bytea,                           -- good until prev_token_expires
  prev_token_expires timestamptz,
  started_at     timestamptz NOT NULL DEFAULT now(),
  work_deadline  timestamptz NOT NULL,             -- the harness is interrupted
  deadline       timestamptz NOT NULL,             -- of the whole attempt; written before the engine is asked
  token_issued   timestamptz,
  heartbeat_at   timestamptz,
  acked          bigint NOT NULL DEFAULT 0,        -- the runner's events up to this number are dealt with
  dropped        bigint NOT NULL DEFAULT 0,        -- how many of them were dropped for being too many or malformed
  ended_at       timestamptz,
  end_words      text NOT NULL DEFAULT '',
  reaped_at      timestamptz,                      -- the engine said that nothing of it runs any more
  outcome        jsonb,
  restore        jsonb,                            -- wire.Restored of purpose work
  PRIMARY KEY (session_id, generation)
);
CREATE INDEX attempts_unreaped ON attempts (ended_at) WHERE reaped_at IS NULL;

-- Append-only; each row's hash covers the one before it.
CREATE TABLE events (
  session_id text NOT NULL REFERENCES sessions (id),
  seq        bigint NOT NULL,
  generation integer NOT NULL,
  number     bigint,                               -- the runner's number; NULL for our own events
  kind       text NOT NULL,
  data       jsonb NOT NULL,
  at         timestamptz NOT NULL,
  hash       bytea NOT NULL,
  PRIMARY KEY (session_id, seq),
  UNIQUE (session_id, generation, number)
);

CREATE TABLE artifacts (
  session_id text NOT NULL REFERENCES sessions (id),
  sha256     text NOT NULL,
  bytes      bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (session_id, sha256)
);

CREATE TABLE bundles (
  session_id text NOT NULL REFERENCES sessions (id),
  generation integer NOT NULL,
  turn       integer NOT NULL,
  sha256     text NOT NULL,
  bytes      bigint NOT NULL,
  tip        text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (session_id, generation, turn)
);

CREATE TABLE directives (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_id text NOT NULL REFERENCES sessions (id),
  generation integer NOT NULL,
  kind       text NOT NULL,
  data       jsonb,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX directives_session ON directives (session_id, generation, id);

-- A side effect by its key (session/generation/step). 'started' is written
-- before the effect, so that a retry knows to look for it first.
CREATE TABLE effects (
  key        text PRIMARY KEY,
  session_id text NOT NULL,
  state      text NOT NULL,                        -- started, done
  result     jsonb,
  started_at timestamptz NOT NULL DEFAULT now(),
  done_at    timestamptz
);

-- Branches this installation created; pushes go to no other (invariant 3).
CREATE TABLE branches (
  repository_id bigint NOT NULL,
  name          text NOT NULL,
  session_id    text NOT NULL,
  last_sha      text NOT NULL DEFAULT '',          -- the last we pushed; '' before the first push
  pushing_sha   text NOT NULL DEFAULT '',          -- written before a push whose end is not known yet
  created_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (repository_id, name)
);

-- Files of a session's evidence by the name people see; the content is a blob.
CREATE TABLE evidence (
  session_id text NOT NULL REFERENCES sessions (id),
  name       text NOT NULL,                        -- manifest.json, change.patch, withheld.patch, result.bundle
  sha256     text NOT NULL,
  bytes      bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (session_id, name)
);

-- +goose Down
DROP TABLE evidence, branches, effects, directives, bundles, artifacts, events, attempts, sessions, node_work, snapshots, nodes, environments, repositories, installations, intents, deliveries;
DROP TYPE session_state;
