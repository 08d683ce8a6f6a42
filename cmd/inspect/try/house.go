package try

import (
	"context"
	"io"
	"time"

	"inspect/app/publish"
	"inspect/scheduler"
	"inspect/storage"
)

// House is the control plane with its one node, as `inspect serve` has them,
// but without a forge. cmd builds it.
type House struct {
	DB        *storage.DB
	Blobs     *storage.Blobs
	Scheduler *scheduler.Scheduler
	// Failed tells, once, of a part that ended by itself.
	Failed <-chan error
	// Close ends everything that was started. It may be called again.
	Close func()
}

// HouseOptions say what house to build.
type HouseOptions struct {
	Data    string        // directory of everything
	Origins string        // directory of the repositories that stand for the forge
	Expose  []string      // directories of this machine that sandboxes see
	Limits  string        // enforce or best-effort
	Models  string        // file of the model gateway; empty: there is none
	Prepare time.Duration // most that preparing an environment may take
	Log     io.Writer
	// GitHub answers what publishing asks of a forge, CloneURL is where a
	// repository is.
	GitHub   publish.GitHub
	CloneURL func(repository int64) string
	// Effects are made when there is a publisher.
	Effects func(*publish.Publisher) scheduler.Effects
}

// Opener builds a house and starts it.
type Opener func(ctx context.Context, o HouseOptions) (*House, error)
