-- +goose Up
-- People who signed in to the pages with GitHub. What they may see and do is
-- asked anew; this only says who they are.
CREATE TABLE signins (
  cookie     bytea PRIMARY KEY,          -- SHA-256 of the cookie's value
  user_id    bigint NOT NULL,
  login      text NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL
);

-- +goose Down
DROP TABLE signins;
