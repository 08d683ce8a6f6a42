-- +goose Up
-- Sessions that a pipeline of Buildkite asked for: no person did.
CREATE TABLE pipeline_sessions (
  session_id      text PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
  repository_id   bigint NOT NULL,
  organization_id text NOT NULL,
  pipeline_id     text NOT NULL,
  slug            text NOT NULL,                   -- organization/pipeline, for people
  act             text NOT NULL,                   -- prompt, issue, fix_build
  build_number    integer NOT NULL,
  job_id          text NOT NULL DEFAULT '',        -- empty: a webhook told of the build
  fixes           text NOT NULL DEFAULT '',        -- the commit whose build failed
  branch          text NOT NULL DEFAULT '',        -- that had this commit
  created_at      timestamptz NOT NULL
);
CREATE INDEX pipeline_sessions_fixes ON pipeline_sessions (repository_id, branch) WHERE fixes <> '';

-- What a step reads its session's state with.
CREATE TABLE pipeline_tokens (
  hash       bytea PRIMARY KEY,                    -- SHA-256 of the token
  session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  created_at timestamptz NOT NULL
);
CREATE INDEX pipeline_tokens_session ON pipeline_tokens (session_id, created_at);

-- Builds of exactly the commit that a session pushed, one row for each pipeline
-- that is looked at. A row without a pipeline says that there is none to look at.
CREATE TABLE session_builds (
  session_id   text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  pipeline_id  text NOT NULL,
  slug         text NOT NULL DEFAULT '',           -- organization/pipeline
  sha          text NOT NULL,
  required     boolean NOT NULL,
  creates      boolean NOT NULL,                   -- a build may be asked for
  asked_at     timestamptz,                        -- it was, or the answer was lost
  number       integer NOT NULL DEFAULT 0,         -- of the build; 0: none is known
  state        text NOT NULL DEFAULT 'pending',    -- pending, passed, failed, blocked, canceled
  result       jsonb,                              -- what the build shows
  words        text NOT NULL DEFAULT '',           -- why there is no result, for people
  changes      integer NOT NULL DEFAULT 0,         -- of what is told of it
  looks        integer NOT NULL DEFAULT 0,         -- that found nothing or failed, in a row
  next_look_at timestamptz NOT NULL,
  deadline     timestamptz NOT NULL,
  done_at      timestamptz,                        -- nobody looks any more
  created_at   timestamptz NOT NULL,
  PRIMARY KEY (session_id, pipeline_id)
);
CREATE INDEX session_builds_due ON session_builds (next_look_at) WHERE done_at IS NULL;
CREATE INDEX session_builds_sha ON session_builds (sha) WHERE done_at IS NULL;
-- Which delivered sessions are new to whoever looks at builds.
CREATE INDEX sessions_builds_wanted ON sessions (finished_at) WHERE state = 'delivered' AND spec -> 'checks' -> 'buildkite' ->> 'builds' <> '';

-- +goose Down
DROP INDEX sessions_builds_wanted;
DROP TABLE session_builds;
DROP TABLE pipeline_tokens;
DROP TABLE pipeline_sessions;
