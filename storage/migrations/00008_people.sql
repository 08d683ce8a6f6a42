-- +goose Up
-- Every person who started, prompted, allowed, raised or pushed something into
-- a session: its requesters.
CREATE TABLE session_people (
  session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  user_id    bigint NOT NULL,
  login      text NOT NULL,
  role       text NOT NULL,                     -- started, prompted, allowed, raised, pushed
  at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (session_id, user_id, role)
);
INSERT INTO session_people (session_id, user_id, login, role, at)
SELECT id, requester_id, requester_login, 'started', created_at FROM sessions WHERE requester_id > 0;

CREATE INDEX intents_actor ON intents (repository_id, issue_number, actor_id, created_at); -- the loop breaker counts them

-- +goose Down
DROP INDEX intents_actor;
DROP TABLE session_people;
