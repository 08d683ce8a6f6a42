-- +goose Up
-- What only a person may allow: that a result is pushed although policy holds
-- it back, a further host, a higher budget. An answer counts for exactly what
-- the digest is of.
CREATE TABLE approvals (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_id     text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  kind           text NOT NULL,                    -- publish, egress, budget
  asked          jsonb NOT NULL,                   -- scheduler.Asked
  words          text NOT NULL,                    -- the same for people
  digest         text NOT NULL,                    -- hexadecimal SHA-256 over all that it is bound to
  bundle         text NOT NULL DEFAULT '',         -- the parts of that, so that a difference can be told
  policy         text NOT NULL DEFAULT '',
  base_sha       text NOT NULL DEFAULT '',
  remote_head    text NOT NULL DEFAULT '',
  asked_by       bigint NOT NULL DEFAULT 0,        -- account; 0: nobody, policy asks
  asked_login    text NOT NULL DEFAULT '',
  state          text NOT NULL DEFAULT 'pending',  -- pending, approved, rejected, expired, void
  requested_at   timestamptz NOT NULL,
  expires_at     timestamptz NOT NULL,
  answered_by    bigint NOT NULL DEFAULT 0,
  answered_login text NOT NULL DEFAULT '',
  answered_how   text NOT NULL DEFAULT '',         -- command, button, page
  answered_at    timestamptz
);
CREATE UNIQUE INDEX approvals_pending ON approvals (session_id, kind) WHERE state = 'pending';
CREATE INDEX approvals_session ON approvals (session_id, id);

-- The second check run on our pull requests, one row for each run there is or
-- was: it is written before the run is made.
CREATE TABLE reviews (
  repository_id bigint NOT NULL,
  pull_request  integer NOT NULL,                  -- 0: of a merge group
  head_sha      text NOT NULL,
  number        integer NOT NULL,                  -- counted from 1 for each head
  conclusion    text NOT NULL,                     -- action_required, success
  words         text NOT NULL,
  check_run_id  bigint NOT NULL DEFAULT 0,         -- 0: not known yet
  created_at    timestamptz NOT NULL,
  PRIMARY KEY (repository_id, pull_request, head_sha, number)
);

-- +goose Down
DROP TABLE reviews, approvals;
