package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"inspect/envs/egress"
	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// maxAnswer bounds the output of a small command of ours, in bytes.
const maxAnswer = 256 << 10

// box is a running sandbox and what we know of its end.
type box struct {
	a       *attempt
	purpose string
	sb      Sandbox
	end     <-chan wire.SandboxEnd
	ways    map[string]net.Listener // out of the sandbox, by the name of the grant's socket
	proxy   *egress.Proxy           // of the way to the network; nil: there is none
	serving sync.WaitGroup          // what serves them
	shut    context.CancelFunc      // ends that; nil: nothing does
	closing sync.Once
	ended   wire.SandboxEnd // after close
}

// open starts a sandbox over the clone of a purpose, for the agent or for
// verification.
func (a *attempt) open(ctx context.Context, purpose string) (*box, error) {
	return a.openFor(ctx, purpose, a.spec.Egress)
}

// openFor starts a sandbox that may reach certain hosts.
func (a *attempt) openFor(ctx context.Context, purpose string, allow []string) (*box, error) {
	ctx, cancel := proc.WithTimeout(ctx, a.clock, a.opt.pace.sandbox)
	defer cancel()
	ask := wire.SandboxRequest{Grant: a.grant(purpose)}
	proxy, err := a.newProxy(ctx, allow)
	if err != nil {
		return nil, fmt.Errorf("the egress proxy: %w", err)
	}
	if proxy != nil {
		ask.Authority = string(proxy.Authority())
	}
	sb, end, ways, err := a.node.Sandbox(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("start a sandbox: %w", err)
	}
	b := &box{a: a, purpose: purpose, sb: sb, end: end, ways: ways, proxy: proxy}
	if ways[wire.SocketEgress] != nil && proxy == nil {
		// The grant has the way for setup's sake alone: who asks here is told no.
		if b.proxy, err = a.proxyWith(nil, nil); err != nil {
			b.close()
			return nil, fmt.Errorf("the egress proxy: %w", err)
		}
	}
	return b, nil
}

// withoutModel closes the way to the model before it is served.
func (b *box) withoutModel() {
	if l := b.ways[wire.SocketModel]; l != nil {
		_ = l.Close()
		delete(b.ways, wire.SocketModel)
	}
}

// close ends the sandbox with all that runs in it and says what is known about
// its end; the zero value if nobody told in time.
func (b *box) close() wire.SandboxEnd {
	b.closing.Do(func() {
		_ = b.sb.Close()
		for _, l := range b.ways {
			_ = l.Close()
		}
		if b.shut != nil {
			b.shut()
		}
		b.serving.Wait()
		if b.ways[wire.SocketEgress] != nil {
			sent, received := b.a.meter.Used()
			b.a.events.add(wire.EventUse, wire.EgressUse{Sent: sent, Received: received, Limit: b.a.spec.Limits.EgressBytes})
		}
		select {
		case b.ended = <-b.end:
		case <-b.a.clock.After(b.a.opt.pace.sandboxEnd):
			b.a.log.Warn("nobody told how the sandbox ended")
		}
		if b.ended.Store != "" {
			b.a.storeTrouble.CompareAndSwap(nil, &b.ended.Store)
		}
	})
	return b.ended
}

// call is one of our own commands in the sandbox.
type call struct {
	step   string // of the Command event; empty: none is made
	argv   []string
	env    []string
	dir    string // empty: the workspace
	stdin  io.Reader
	stdout io.Writer     // nil: ran.out has it, up to maxAnswer bytes
	wait   time.Duration // 0: pace.script
}

// ran is how a command ended.
type ran struct {
	code     int    // -1: ended by a signal
	signal   string // "SIGKILL", …
	out      []byte
	cut      bool // out is not all
	err      string
	duration time.Duration
}

func (r ran) ok() bool { return r.code == 0 }

// line is the first line of the output.
func (r ran) line() string {
	s, _, _ := strings.Cut(string(r.out), "\n")
	return strings.TrimSpace(s)
}

// run runs a command and waits for its end, for at most its wait. An exit
// status that is not zero is no error.
func (b *box) run(ctx context.Context, c call) (ran, error) {
	if c.wait == 0 {
		c.wait = b.a.opt.pace.script
	}
	cctx, cancel := proc.WithTimeout(ctx, b.a.clock, c.wait)
	defer cancel()
	if c.dir == "" {
		c.dir = b.a.places().workspace
	}
	head, tail := &proc.Head{N: maxAnswer}, &proc.Tail{N: tailBytes}
	e := stream.Exec{Argv: c.argv, Env: c.env, Dir: c.dir, Stdin: c.stdin, Stdout: c.stdout, Stderr: tail}
	if e.Stdout == nil {
		e.Stdout = head
	}
	begun := b.a.clock.Now()
	exit, err := b.sb.Run(cctx, e)
	r := ran{
		code: exit.Code, signal: exit.Signal, out: head.Bytes(), cut: head.Cut(),
		err: strings.TrimSpace(string(tail.Bytes())), duration: b.a.clock.Now().Sub(begun),
	}
	if r.signal != "" {
		r.code = -1
	}
	if err != nil {
		r.code = -1
		if cctx.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%s did not end within %s: %w", short(c.argv), c.wait, errTooSlow)
		}
	}
	if c.step != "" {
		ev := wire.Command{
			Step: c.step, Line: b.a.events.text(shown(c.argv), 1<<10), ExitCode: r.code, Signal: r.signal,
			Duration: r.duration, Output: b.a.events.text(r.err, tailBytes),
		}
		if err != nil {
			ev.Error = b.a.events.text(err.Error(), maxWords)
		}
		b.a.events.add(wire.EventCommand, ev)
	}
	return r, err
}

// errTooSlow is the error of a command of ours that took longer than it may.
var errTooSlow = errors.New("too slow")

// must is run for a command whose failure is an error.
func (b *box) must(ctx context.Context, c call) (ran, error) {
	r, err := b.run(ctx, c)
	if err != nil {
		return r, err
	}
	if !r.ok() {
		return r, failed(c.argv, r)
	}
	return r, nil
}

func failed(argv []string, r ran) error {
	how := fmt.Sprintf("ended with status %d", r.code)
	if r.signal != "" {
		how = "was ended by " + r.signal
	}
	last := r.err
	if i := strings.LastIndexByte(last, '\n'); i >= 0 {
		last = last[i+1:]
	}
	if last != "" {
		how += ": " + harness.Clean(last)
	}
	return errors.New(short(argv) + " " + how)
}

// shown is a command line as people are shown it: git without our settings.
func shown(argv []string) string {
	out := argv[:1:1]
	for i := 1; i < len(argv); i++ {
		if argv[0] == "git" && argv[i] == "-c" {
			i++
			continue
		}
		out = append(out, argv[i])
	}
	return strings.Join(out, " ")
}

// short names a command in words: git with its verb, else the program.
func short(argv []string) string {
	if argv[0] != "git" {
		return argv[0]
	}
	for i := 1; i < len(argv); i++ {
		if argv[i] == "-c" {
			i++
			continue
		}
		if !strings.HasPrefix(argv[i], "-") {
			return "git " + argv[i]
		}
	}
	return "git"
}

// git makes a command of git on the repository at dir with nothing of anybody's
// configuration but the repository's own: no hooks, no monitors, no collecting.
// Git never runs outside a sandbox here.
func (a *attempt) git(dir string, args ...string) call {
	p := a.places()
	argv := []string{
		"git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
		"-c", "maintenance.auto=false", "-c", "commit.gpgSign=false", "-c", "core.quotePath=false",
	}
	return call{
		argv: append(argv, args...),
		wait: a.opt.pace.git,
		env: append(a.identity(),
			"HOME="+p.home, "LC_ALL=C", "GIT_DIR="+dir, "GIT_WORK_TREE="+p.workspace,
			"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+p.scratch()+"/gitconfig",
			"GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1",
		),
	}
}

// identity is the environment that makes commits ours.
func (a *attempt) identity() []string {
	name, mail := oneLine(a.spec.AuthorName, "inspect"), oneLine(a.spec.AuthorEmail, "inspect@localhost")
	return []string{
		"GIT_AUTHOR_NAME=" + name, "GIT_AUTHOR_EMAIL=" + mail,
		"GIT_COMMITTER_NAME=" + name, "GIT_COMMITTER_EMAIL=" + mail,
	}
}

func oneLine(s, empty string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '<' || r == '>' {
			return -1
		}
		return r
	}, s))
	if s == "" {
		return empty
	}
	return s
}

// prepareScript makes our directory in the agent's home, whatever the agent
// has made of it, and writes git's configuration: one for our own commands and
// one for the agent, which sees its own as well.
const prepareScript = `
umask 077
home=$1 s=$2
chmod u+rwx "$home" "$3" 2>/dev/null
if [ -L "$s" ] || [ ! -d "$s" ]; then rm -rf -- "$s"; fi
mkdir -p -- "$s" && chmod u+rwx "$s" || exit 1
rm -rf -- "$s/gitconfig" "$s/gitconfig-agent"
cat >"$s/gitconfig" || exit 1
{ printf '[include]\n\tpath = ~/.gitconfig\n'; cat "$s/gitconfig"; } >"$s/gitconfig-agent"
`

// prepare makes a fresh sandbox fit for git.
func (b *box) prepare(ctx context.Context) error {
	a := b.a
	name, mail := oneLine(a.spec.AuthorName, "inspect"), oneLine(a.spec.AuthorEmail, "inspect@localhost")
	config := "[safe]\n\tdirectory = *\n" + // the mirror belongs to another account
		"[uploadpack]\n\tallowAnySHA1InWant = true\n" +
		"[advice]\n\tdetachedHead = false\n" +
		"[user]\n\tname = " + gitQuote(name) + "\n\temail = " + gitQuote(mail) + "\n"
	_, err := b.must(ctx, call{
		argv:  []string{"sh", "-c", prepareScript, "sh", a.places().home, a.places().scratch(), a.places().workspace},
		dir:   "/",
		stdin: strings.NewReader(config),
	})
	if err != nil {
		return fmt.Errorf("prepare the sandbox: %w", err)
	}
	return nil
}

// gitQuote quotes a value of a configuration file of git's.
func gitQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
