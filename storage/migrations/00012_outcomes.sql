-- +goose Up
-- What became of the pull requests that sessions had a hand in. What is counted
-- is in docs/metrics.md.
CREATE TABLE pulls (
  repository_id bigint NOT NULL,
  number        integer NOT NULL,
  base_ref      text NOT NULL DEFAULT '',  -- the branch it is to go into; empty: not known
  base_since    timestamptz,               -- it was retargeted then; null: never, as far as we know
  merged_at     timestamptz,
  merge_sha     text NOT NULL DEFAULT '',
  paths         jsonb,                     -- of the files it changed, a list; null: not read
  reviews_read  boolean NOT NULL DEFAULT false, -- once more, after its end
  watched_until timestamptz,               -- what landed on its base after the merge was looked through
  PRIMARY KEY (repository_id, number)
);
CREATE INDEX pulls_merged ON pulls (repository_id, merged_at) WHERE merged_at IS NOT NULL;

-- What happened to them, each thing once however often it is told.
CREATE TABLE pull_events (
  repository_id bigint NOT NULL,
  number        integer NOT NULL,
  kind          text NOT NULL,             -- measure.Kind
  key           text NOT NULL,             -- tells it from others of its kind
  at            timestamptz NOT NULL,
  actor_id      bigint NOT NULL DEFAULT 0,
  actor_login   text NOT NULL DEFAULT '',
  bot           boolean NOT NULL DEFAULT false,
  sha           text NOT NULL DEFAULT '',  -- of a push: the new head; of a review: what was looked at; of a merge: the commit
  before        text NOT NULL DEFAULT '',  -- of a push: the old head
  PRIMARY KEY (repository_id, number, kind, key),
  FOREIGN KEY (repository_id, number) REFERENCES pulls ON DELETE CASCADE
);
CREATE INDEX pull_events_sha ON pull_events (repository_id, sha) WHERE kind = 'merged';

CREATE TABLE session_outcomes (
  session_id     text PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
  pull_request   integer NOT NULL,
  opened         boolean NOT NULL,         -- it opened the pull request; review, rounds, pushes and fixes are counted there only
  opened_at      timestamptz,
  merged_at      timestamptz,
  closed_at      timestamptz,              -- without a merge
  reverted_at    timestamptz,
  review_seconds integer NOT NULL DEFAULT 0,
  rounds         integer NOT NULL DEFAULT 0,
  pushes         integer NOT NULL DEFAULT 0, -- people's
  fixes          integer NOT NULL DEFAULT 0, -- within 14 days
  updated_at     timestamptz NOT NULL
);

-- +goose Down
DROP TABLE session_outcomes, pull_events, pulls;
