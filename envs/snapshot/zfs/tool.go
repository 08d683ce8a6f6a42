package zfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
)

// tool runs zfs and does nothing else: it decides neither what nor whether. A
// command that was started and answers is never interrupted, because nobody
// could tell then what it did.
type tool struct {
	program string // default zfs
	clock   proc.Clock
	// locks are inherited by every command: what a killed process has started
	// keeps the store closed to the next one until it ends.
	locks []*os.File
	slots chan struct{} // one for each command that may run at the same time
}

const (
	atOnce      = 16
	commandTime = 2 * time.Minute  // of one command; a suspended pool answers nothing
	endTime     = 30 * time.Second // for a command whose caller's context has ended to end, too
	killTime    = 5 * time.Second  // for a command that was killed to be gone
	outputBytes = 64 << 20         // some 200,000 datasets
	retries     = 40               // measured on zfs-fuse: the worst destroy needed 19
	retryEvery  = 50 * time.Millisecond
)

// What only this package decides on.
var (
	errDependent = errors.New("others were made from it")
	errNoTag     = errors.New("no such hold")
	errUnknown   = errors.New("unknown command")
	errLess      = errors.New("less than it has")
)

// says tells what an answer of zfs means, by words that stand in it: the first
// that fits. Names of datasets have no spaces, so none can pretend to be one.
var says = []struct {
	words string
	means error
}{
	{"has dependent clones", errDependent},
	{"has children", errDependent},
	{"no such tag", errNoTag},
	{"unrecognized command", errUnknown},
	{"size is less than current used", errLess},
	{"zfs-fuse daemon is running", snapshot.ErrUnavailable},
	{"failed to initialize ZFS library", snapshot.ErrUnavailable},
	{"modules are not loaded", snapshot.ErrUnavailable},
	{"modules cannot be auto-loaded", snapshot.ErrUnavailable},
	{"no pools available", snapshot.ErrUnavailable},
	{"is currently suspended", snapshot.ErrUnavailable},
	{"I/O error", snapshot.ErrUnavailable},
	{"pool is unavailable", snapshot.ErrUnavailable},
	{"pool is read-only", snapshot.ErrUnavailable},
	{"Read-only file system", snapshot.ErrUnavailable},
	{"out of space", snapshot.ErrNoSpace},
	{"No space left on device", snapshot.ErrNoSpace},
	{"quota exceeded", snapshot.ErrNoSpace},
	{"size is greater than available space", snapshot.ErrNoSpace},
	{"already exists", snapshot.ErrExists},
	{"already mounted", snapshot.ErrExists},
	{"does not exist", snapshot.ErrNotFound},
	{"could not find any snapshots", snapshot.ErrNotFound},
	{"no such pool", snapshot.ErrNotFound},
	{"is busy", snapshot.ErrBusy},
	{"resource busy", snapshot.ErrBusy},
}

// meaning is the typed error of what a command said; nil if it is none of ours.
func meaning(said string) error {
	for _, s := range says {
		if strings.Contains(said, s.words) {
			return s.means
		}
	}
	return nil
}

// run runs zfs with arguments and returns what it printed, also beside an error.
func (t tool) run(ctx context.Context, argv ...string) (string, error) {
	res, err := t.answer(ctx, argv)
	if exit := new(proc.ExitError); errors.As(err, &exit) {
		if is := meaning(string(res.Stderr)); is != nil {
			err = fmt.Errorf("%w: %w", is, err)
		}
	}
	if err == nil && res.Truncated {
		err = errors.New("it printed too much")
	}
	if err != nil {
		err = fmt.Errorf("zfs %s: %w", argv[0], err)
	}
	return string(res.Stdout), err
}

// answer waits for a command, but not for ever: one that waits in the kernel
// for a suspended pool cannot even be killed. It then keeps its slot.
func (t tool) answer(ctx context.Context, argv []string) (proc.Result, error) {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return proc.Result{}, fmt.Errorf("%w; %d commands were waited for: %s", context.Cause(ctx), cap(t.slots), suspended)
	}
	type answer struct {
		res proc.Result
		err error
	}
	said := make(chan answer, 1)
	bounded, cancel := proc.WithTimeout(context.WithoutCancel(ctx), t.clock, commandTime)
	go func() {
		defer func() { <-t.slots }()
		res, err := proc.Run(bounded, proc.Command{
			Argv: append([]string{cmp.Or(t.program, "zfs")}, argv...), Env: []string{"PATH=" + proc.DefaultPath, "LC_ALL=C"},
			Limit: outputBytes, ExtraFiles: t.locks,
		})
		said <- answer{res, err}
	}()
	defer cancel()
	select {
	case a := <-said:
		return a.res, a.err
	case <-bounded.Done():
		select {
		case a := <-said:
			if a.err == nil {
				return a.res, nil
			}
		case <-t.clock.After(killTime):
		}
		return proc.Result{}, fmt.Errorf("no answer within %s: %s: %w", commandTime, suspended, snapshot.ErrUnavailable)
	case <-ctx.Done():
	}
	select {
	case a := <-said:
		return a.res, a.err
	case <-t.clock.After(endTime):
	}
	return proc.Result{}, fmt.Errorf("%w, and no answer within %s after that: %s: %w", context.Cause(ctx), endTime, suspended, snapshot.ErrUnavailable)
}

// suspended is what to do about commands that do not answer.
const suspended = "is the pool suspended? `zpool status` tells; when its devices are back, `zpool clear` lets it go on"

// value of a property, and where it comes from.
type value struct{ text, source string }

// rows are properties of datasets and snapshots, by name.
type rows map[string]map[string]value

// get reads properties of the named that are there; what is not there is left
// out.
func (t tool) get(ctx context.Context, properties []string, names ...string) (rows, error) {
	return t.read(ctx, properties, nil, names)
}

// below reads properties of a dataset and what is below it.
func (t tool) below(ctx context.Context, properties []string, depth int, name string) (rows, error) {
	return t.read(ctx, properties, []string{"-r", "-d", fmt.Sprint(depth)}, []string{name})
}

func (t tool) read(ctx context.Context, properties, flags, names []string) (rows, error) {
	argv := append([]string{"get", "-H", "-p", "-o", "name,property,value,source"}, flags...)
	argv = append(append(argv, strings.Join(properties, ",")), names...)
	printed, err := t.run(ctx, argv...)
	if exit := new(proc.ExitError); err != nil && !(errors.As(err, &exit) && onlyMissing(string(exit.Result.Stderr))) {
		return nil, err
	}
	return parse(printed, properties)
}

// onlyMissing is true if a get complained of nothing but names that are not there.
func onlyMissing(said string) bool {
	for line := range strings.Lines(said) {
		if !errors.Is(meaning(line), snapshot.ErrNotFound) {
			return false
		}
	}
	return said != ""
}

// parse reads what get printed: name, property, value and source in each line,
// with a tab between them. Anything else is an error.
func parse(printed string, properties []string) (rows, error) {
	out := rows{}
	for line := range strings.Lines(printed) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 || f[0] == "" || !slices.Contains(properties, f[1]) {
			return nil, fmt.Errorf("what zfs get printed is not understood: %.200q", line)
		}
		if out[f[0]] == nil {
			out[f[0]] = map[string]value{}
		}
		if _, twice := out[f[0]][f[1]]; twice {
			return nil, fmt.Errorf("zfs get printed %s of %s twice", f[1], f[0])
		}
		out[f[0]][f[1]] = value{f[2], f[3]}
	}
	return out, nil
}
