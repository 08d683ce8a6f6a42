-- +goose Up
-- Sessions on pull requests, what people ask of a session that is there
-- already, and what the agent was told.
ALTER TABLE sessions ADD COLUMN pull_number integer NOT NULL DEFAULT 0;    -- of the pull request whose head it works on; 0: none
ALTER TABLE sessions ADD COLUMN head_repo_id bigint NOT NULL DEFAULT 0;    -- where that head is; 0: the fork was deleted
ALTER TABLE sessions ADD COLUMN base_ref text NOT NULL DEFAULT '';         -- the ref that holds base_sha; empty: the branch base_branch
ALTER TABLE sessions ADD COLUMN deliver text NOT NULL DEFAULT 'pull';      -- pull: own branch and draft; head: onto the head's branch; patch: evidence only
ALTER TABLE sessions ADD COLUMN head_check_run_id bigint NOT NULL DEFAULT 0; -- on base_sha, of a session on a pull request
ALTER TABLE sessions ADD COLUMN locked boolean NOT NULL DEFAULT false;     -- its conversation: nothing is written there
ALTER TABLE sessions ADD COLUMN stop_reason text NOT NULL DEFAULT '';      -- code of the end that stop_at asks for; empty: a person's stop
ALTER TABLE sessions ADD COLUMN context jsonb;                             -- what people wrote that the agent was told and was not
CREATE INDEX sessions_pull ON sessions (repository_id, pull_number) WHERE pull_number > 0;

-- What a session was asked besides its first request, in order.
CREATE TABLE prompts (
  session_id   text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  number       integer NOT NULL,                  -- from 1
  text         text NOT NULL,
  author_id    bigint NOT NULL,
  author_login text NOT NULL,
  comment_id   bigint NOT NULL,
  intent_key   text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (session_id, number),
  UNIQUE (session_id, intent_key)
);

-- +goose Down
DROP TABLE prompts;
DROP INDEX sessions_pull;
ALTER TABLE sessions DROP COLUMN context;
ALTER TABLE sessions DROP COLUMN stop_reason;
ALTER TABLE sessions DROP COLUMN locked;
ALTER TABLE sessions DROP COLUMN head_check_run_id;
ALTER TABLE sessions DROP COLUMN deliver;
ALTER TABLE sessions DROP COLUMN base_ref;
ALTER TABLE sessions DROP COLUMN head_repo_id;
ALTER TABLE sessions DROP COLUMN pull_number;
