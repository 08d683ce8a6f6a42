package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"

	"inspect/envs/sandbox"
	"inspect/envs/wire"
)

// maxBeside is how many compartments one sandbox can have at a time.
const maxBeside = 20

var compartmentPattern = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)

// compartmentID is the id of the compartment of that name beside a sandbox. It
// is no clone's and no base's.
func compartmentID(id, name string) string { return "beside-" + wayName(id+"/"+name) }

// startBeside starts a compartment of the running sandbox with that id, over
// the same tree. One of the same name that still runs is ended first. It has
// the sandbox's ways out through the loopback they share, if the sandbox has
// them. The caller holds the sandbox's id; control is closed in any case.
func (n *Node) startBeside(ctx context.Context, id, name, tree string, repository int64, img string, limits wire.Limits, sockets []string, control *os.File) (*running, error) {
	own := compartmentID(id, name)
	if err := n.end(ctx, own); err != nil {
		control.Close()
		return nil, fmt.Errorf("end the earlier %s beside sandbox %s: %w", name, id, err)
	}
	n.mu.Lock()
	count := 0
	for _, r := range n.running {
		if r.beside == id {
			count++
		}
	}
	n.mu.Unlock()
	if count >= maxBeside {
		control.Close()
		return nil, badRequest(fmt.Sprintf("%d services and steps with secrets run in sandbox %s already, more cannot", count, id))
	}
	if !n.o.Launcher.Alive(id) {
		control.Close()
		return nil, refuse("not_found", fmt.Sprintf("sandbox %s does not run, so nothing can run beside it", id))
	}
	spec, err := n.sandboxSpec(own, tree, repository, limits, control)
	if err == nil {
		err = n.withImage(ctx, &spec, img)
	}
	if err != nil {
		control.Close()
		return nil, err
	}
	spec.Beside = id
	n.waysOf(id, sockets).tell(&spec)
	n.log.Info("starting a compartment", "sandbox", id, "name", name, "compartment", own)
	r, err := n.launch(ctx, spec, &ways{n: n})
	if errors.Is(err, sandbox.ErrIsolation) {
		return nil, badRequest(err.Error()) // it would not do any other time
	}
	return r, err
}
