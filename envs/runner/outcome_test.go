package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/checks/redact"
	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

func TestWithoutStore(t *testing.T) {
	bad := []wire.VerifyResult{{Name: "unit", ExitCode: 1}}
	flaky := []wire.VerifyResult{{Name: "unit", ExitCode: 1, Again: []wire.VerifyResult{{ExitCode: 0}}}}
	for name, c := range map[string]struct {
		o            wire.Outcome
		kind, reason string
		told         bool
	}{
		"failed":              {wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonHarnessExit}, wire.OutcomeInfrastructure, wire.ReasonNodeStore, true},
		"nothing":             {wire.Outcome{Kind: wire.OutcomeNoChange}, wire.OutcomeInfrastructure, wire.ReasonNodeStore, true},
		"its own limit":       {wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonDisk}, wire.OutcomeFailed, wire.ReasonDisk, false},
		"memory":              {wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonMemory}, wire.OutcomeFailed, wire.ReasonMemory, false},
		"verified":            {wire.Outcome{Kind: wire.OutcomeVerified, Results: flaky}, wire.OutcomeVerified, "", false},
		"verification failed": {wire.Outcome{Kind: wire.OutcomeVerified, Results: bad}, wire.OutcomeInfrastructure, wire.ReasonNodeStore, true},
		"stopped":             {wire.Outcome{Kind: wire.OutcomeStopped, Reason: "stopped"}, wire.OutcomeStopped, "stopped", false},
		"late":                {wire.Outcome{Kind: wire.OutcomeTimedOut}, wire.OutcomeTimedOut, "", true},
		"missing":             {wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: wire.ReasonSnapshotMissing}, wire.OutcomeInfrastructure, wire.ReasonSnapshotMissing, true},
	} {
		c.o.Words = "As it was."
		o := withoutStore(c.o, "the disk was full: free some space")
		want := "As it was."
		if c.told {
			want = "The disk was full: free some space. As it was."
		}
		if o.Kind != c.kind || o.Reason != c.reason || o.Words != want {
			t.Errorf("%s: %s/%s %q", name, o.Kind, o.Reason, o.Words)
		}
	}
}

func TestDecide(t *testing.T) {
	change := taken{tip: strings.Repeat("a", 40)}
	limits := wire.Limits{Pids: 9, MemoryBytes: 64 << 20, DiskBytes: 5 << 20}
	failedExit := harness.Result{ExitCode: 2}
	for name, c := range map[string]struct {
		e      ending
		kind   string
		reason string
		words  string
	}{
		"a result":              {ending{taken: change}, "", "", ""},
		"nothing":               {ending{}, wire.OutcomeNoChange, "", "The agent (x) changed nothing."},
		"failed with work":      {ending{result: failedExit, taken: change}, wire.OutcomeFailed, wire.ReasonHarnessExit, "The agent (x) ended with exit status 2. Its work is kept."},
		"failed, memory":        {ending{result: failedExit, end: wire.SandboxEnd{OOM: 3, PidsHit: 1}}, wire.OutcomeFailed, wire.ReasonMemory, "exit status 2. The memory limit of 64 MiB was reached."},
		"failed, processes":     {ending{result: failedExit, end: wire.SandboxEnd{PidsHit: 1}}, wire.OutcomeFailed, wire.ReasonPids, "The limit of 9 for processes was reached."},
		"fine in spite of OOM":  {ending{taken: change, end: wire.SandboxEnd{OOM: 1}}, "", "", ""},
		"by a signal":           {ending{result: harness.Result{ExitCode: -1, Signal: "SIGSEGV"}}, wire.OutcomeFailed, wire.ReasonHarnessExit, "was ended by SIGSEGV"},
		"sandbox full":          {ending{result: harness.Result{ExitCode: -1, Err: stream.ErrEnded}, end: wire.SandboxEnd{DiskFull: true}, taken: change}, wire.OutcomeFailed, wire.ReasonDisk, "The disk limit of 5 MiB was reached. Its work is kept."},
		"sandbox lost":          {ending{result: harness.Result{ExitCode: -1, Err: stream.ErrEnded}}, wire.OutcomeInfrastructure, "sandbox_lost", "lost its sandbox"},
		"missing":               {ending{result: harness.Result{ExitCode: -1, Missing: "no such file."}}, wire.OutcomeFailed, wire.ReasonHarnessMissing, "could not be started: no such file."},
		"late":                  {ending{why: cutDeadline, result: failedExit, workedBy: time.Minute}, wire.OutcomeTimedOut, "", "was not done within 1m0s; nothing was verified."},
		"late, killed":          {ending{why: cutDeadline, result: harness.Result{ExitCode: -1, Err: stream.ErrEnded}, workedBy: time.Minute}, wire.OutcomeTimedOut, "", "was not done within 1m0s; nothing was verified."},
		"over budget":           {ending{why: cutBudget, money: " ($0.30 of $0.50 are spent)", result: harness.Result{Failed: "402"}, taken: change}, wire.OutcomeOverBudget, "budget", "when what is left of the budget for model calls ($0.30 of $0.50 are spent) did not pay for a further one; nothing was verified. Its work is kept."},
		"no model":              {ending{result: harness.Result{Failed: "the model answered 400"}, taken: change}, wire.OutcomeFailed, wire.ReasonModel, "could not go on: the model answered 400. Its work is kept."},
		"late, processes":       {ending{why: cutDeadline, result: failedExit, end: wire.SandboxEnd{PidsHit: 7}}, wire.OutcomeTimedOut, wire.ReasonPids, "for processes"},
		"stopped":               {ending{why: cutStop, stop: &wire.StopDirective{Reason: "superseded"}, result: failedExit, taken: change}, wire.OutcomeStopped, "superseded", "was stopped. Its work is kept."},
		"finished early":        {ending{why: cutFinish, result: harness.Result{ExitCode: 143}, taken: change}, "", "", ""},
		"finished by force":     {ending{why: cutFinish, result: harness.Result{ExitCode: -1, Err: stream.ErrEnded}, taken: change}, "", "", ""},
		"conflict":              {ending{taken: taken{tip: "x", reason: wire.ReasonConflict, words: "A conflict."}}, wire.OutcomeFailed, wire.ReasonConflict, "A conflict."},
		"failed and conflict":   {ending{result: failedExit, taken: taken{tip: "x", reason: wire.ReasonConflict, words: "A conflict."}}, wire.OutcomeFailed, wire.ReasonHarnessExit, "exit status 2. A conflict. Its work is kept."},
		"cannot be taken":       {ending{taken: taken{err: errors.New("no luck")}}, wire.OutcomeInfrastructure, "take", "no luck"},
		"failed, not taken":     {ending{result: failedExit, taken: taken{err: errors.New("no luck")}}, wire.OutcomeFailed, wire.ReasonHarnessExit, "Its work could not be taken."},
		"taken in part, full":   {ending{taken: taken{tip: "x", partial: true, diskFull: true}}, wire.OutcomeFailed, wire.ReasonDisk, "Not all"},
		"taken in part, broken": {ending{taken: taken{tip: "x", partial: true}}, wire.OutcomeInfrastructure, "take", "only a part"},
	} {
		c.e.label, c.e.limits = "x", limits
		o := decide(c.e)
		if o.Kind != c.kind || o.Reason != c.reason || !strings.Contains(o.Words, c.words) {
			t.Errorf("%s: %s/%s %q", name, o.Kind, o.Reason, o.Words)
		}
	}
}

func TestTrouble(t *testing.T) {
	a := &attempt{orders: newOrders()}
	for name, c := range map[string]struct {
		cause  error
		err    error
		kind   string
		reason string
	}{
		"plain":       {nil, errors.New("no luck"), wire.OutcomeInfrastructure, "sync"},
		"no snapshot": {nil, fmt.Errorf("restore: %w", &wire.Error{Code: "not_found"}), wire.OutcomeInfrastructure, wire.ReasonSnapshotMissing},
		"lost":        {nil, fmt.Errorf("git: %w", stream.ErrEnded), wire.OutcomeInfrastructure, "sandbox_lost"},
		"stopped":     {errStopped, stream.ErrEnded, wire.OutcomeStopped, "stopped"},
		"late":        {errDeadline, stream.ErrEnded, wire.OutcomeTimedOut, ""},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if c.cause != nil {
			cancel(c.cause)
		}
		if o := a.trouble(ctx, "sync", c.err); o.Kind != c.kind || o.Reason != c.reason || o.Words == "" {
			t.Errorf("%s: %+v", name, o)
		}
		cancel(nil)
	}
}

func TestIgnorePatternMatchesExactlyOnePath(t *testing.T) {
	dir := t.TempDir()
	paths := []string{"plain", "*", "?", "[a]", "a", `back\slash`, "#hash", "!bang", "blank ", " lead", "ünï"}
	script := `git init -q "$1"; cd "$1"; mkdir -p sub; cat >.git/info/exclude; shift; for p in "$@"; do printf x >"$p"; printf x >"sub/$p"; done; git -c core.quotePath=false ls-files --others --exclude-standard -z`
	for _, p := range paths {
		line, ok := ignorePattern(p)
		if !ok {
			t.Fatalf("%q has no pattern", p)
		}
		res, err := proc.Run(t.Context(), proc.Command{
			Argv:  append([]string{"sh", "-c", script, "sh", dir}, paths...),
			Env:   []string{"PATH=" + proc.DefaultPath, "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C.UTF-8"},
			Stdin: strings.NewReader(line + "\n"),
		})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, s := range strings.Split(string(res.Stdout), "\x00") {
			seen[s] = true
		}
		for _, q := range paths {
			if seen[q] == (q == p) || !seen["sub/"+q] {
				t.Errorf("pattern %q for %q: %q is seen %v, sub/%q %v", line, p, q, seen[q], q, seen["sub/"+q])
			}
		}
	}
	if _, ok := ignorePattern("a\nb"); ok {
		t.Error("a path with a line break has a pattern")
	}
}

func TestReadSecret(t *testing.T) {
	if s, err := ReadSecret(strings.NewReader("  the secret \nmore")); err != nil || s != "the secret" {
		t.Errorf("%q, %v", s, err)
	}
	if s, err := ReadSecret(strings.NewReader("no line end")); err != nil || s != "no line end" {
		t.Errorf("%q, %v", s, err)
	}
	for _, bad := range []string{"", "\n\n"} {
		if s, err := ReadSecret(strings.NewReader(bad)); err == nil {
			t.Errorf("%q gave %q", bad, s)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := Options{ControlURL: "http://127.0.0.1:1", Session: "s", Generation: 1, Secret: "x", Spool: "/x", NodeSocket: "/n"}
	if o := good; o.check() != nil {
		t.Fatal(o.check())
	}
	for name, change := range map[string]func(*Options){
		"address":    func(o *Options) { o.ControlURL = "127.0.0.1:1" },
		"scheme":     func(o *Options) { o.ControlURL = "ftp://127.0.0.1" },
		"session":    func(o *Options) { o.Session = "../x" },
		"generation": func(o *Options) { o.Generation = 0 },
		"secret":     func(o *Options) { o.Secret = "" },
		"spool":      func(o *Options) { o.Spool = "" },
		"node":       func(o *Options) { o.NodeSocket = "" },
	} {
		o := good
		change(&o)
		if o.check() == nil {
			t.Errorf("%s is not checked", name)
		}
	}
}

func TestAcceptRefusesAnothersSpec(t *testing.T) {
	a := &attempt{opt: Options{Session: "s", Generation: 2}, clock: proc.System()}
	good := wire.Spec{Session: "s", Generation: 2, BaseSHA: strings.Repeat("a", 40), WorkGrant: "w", VerifyGrant: "v", Limits: wire.Limits{Timeout: time.Hour}}
	got, err := a.accept(good)
	if err != nil || time.Until(got.WorkDeadline) < 50*time.Minute || !got.EndDeadline.After(got.WorkDeadline) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, change := range map[string]func(*wire.Spec){
		"session":    func(s *wire.Spec) { s.Session = "t" },
		"generation": func(s *wire.Spec) { s.Generation = 1 },
		"base":       func(s *wire.Spec) { s.BaseSHA = "--upload-pack=x" },
		"grant":      func(s *wire.Spec) { s.VerifyGrant = "" },
	} {
		s := good
		change(&s)
		if _, err := a.accept(s); err == nil {
			t.Errorf("%s is not checked", name)
		}
	}
}

func TestEventLogKeepsRoomForWhatMatters(t *testing.T) {
	s := &spool{dir: t.TempDir()}
	l, err := openEventLog(s, nil, redact.New(), proc.System(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.last = wire.MaxEvents - keptEvents - 1
	for range 5 {
		l.said(wire.EventNote, wire.Note{Words: "the model could not be asked"}) // as many as it likes
	}
	l.said(wire.EventPrompt, wire.Prompted{Prompt: 1, Done: true})
	l.add(wire.EventEgress, wire.Egress{Host: "evil.example"})
	l.add(wire.EventPhase, wire.Phase{Phase: "verifying"})
	if got := l.last - (wire.MaxEvents - keptEvents - 1); got != 5 {
		t.Errorf("%d events were added, want one of the agent's, one note, one prompt, one decision, one phase", got)
	}
	l.add(wire.EventNote, wire.Note{Words: strings.Repeat("x", wire.MaxEventBytes)})
	if got := l.last; got != wire.MaxEvents-keptEvents+5 {
		t.Errorf("an event that is too long was dropped: %d", got)
	}
	l.last = wire.MaxEvents
	l.add(wire.EventPhase, wire.Phase{})
	if l.last != wire.MaxEvents {
		t.Error("there are more events than a session may have")
	}
}

func TestLaterBundleReplacesTheOneThatWaits(t *testing.T) {
	s := &spool{dir: t.TempDir()}
	make := func(text string) blob {
		w, err := s.create(100, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(text))
		b, err := w.finish()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	u := newUploader(nil, nil)
	u.bundle(make("one"), "1", false)
	u.artifact(make("out"))
	u.artifact(make("out"))
	u.bundle(make("two"), "2", true)
	if len(u.queue) != 2 || u.queue[0].bundle || u.queue[1].turn != 2 || u.queue[1].tip != "2" {
		t.Errorf("queue %+v", u.queue)
	}
}

func TestSpoolBoundsRedactsAndHashes(t *testing.T) {
	s := &spool{dir: t.TempDir()}
	w, err := s.create(12, redact.New("hunter22"))
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range []string{"ab hun", "ter22 cd\n", "the end of hunter22\n"} {
		if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	b, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.readHead(100)
	if err != nil || string(got) != "ab [redacted" || !b.truncated || b.size != 12 {
		t.Errorf("%q, %v, %+v", got, err, b)
	}
	if b.tail != "ab [redacted] cd\nthe end of [redacted]\n" {
		t.Errorf("tail %q", b.tail)
	}
}
