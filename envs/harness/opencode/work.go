package opencode

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	"inspect/envs/harness"
	"inspect/envs/sandbox/stream"
)

const (
	// maxTries is how often a prompt is taken up again after the model could not
	// be asked. OpenCode itself has tried for a minute each time.
	maxTries = 3
	// maxWait is the longest time a model's provider may ask to wait.
	maxWait = 10 * time.Minute
	// checkEvery is the pause between looks at a conversation that says nothing.
	checkEvery = 3 * time.Second
	// quietTime is how long the stream of events may be silent; it has a
	// heartbeat every 10 s.
	quietTime = 40 * time.Second
	// deadTime is how long the server may not answer before it is started anew.
	deadTime = 2 * time.Minute
	// maxCrashes is how often that is done.
	maxCrashes = 1
	// lastMessages is how many are looked at to see where a conversation is.
	lastMessages = 30
)

// tryPause is the pause before try n.
func tryPause(n int) time.Duration { return time.Second << (2 * (n - 1)) } // 1, 4, 16 s

// failure ends the work: what was asked cannot be done.
type failure struct{ words string }

func (e *failure) Error() string { return e.words }

var errInterrupted = errors.New("interrupted")

// worker is one agent at work. All of it belongs to one goroutine.
type worker struct {
	*session
	start  *starter
	srv    *server
	events chan *event
	id     string // of the conversation
	book   *book

	posted []*prompt
	quiet  map[string]bool // messages of ours that ask for no answer
	count  int64           // of ids

	before  int // useful answers when the turn began
	tries   int // since an answer was of use
	useful  int // answers at the last try
	crashes int
	retry   <-chan time.Time // the next try
	doubt   time.Time        // since when the conversation rests without an answer
	heard   time.Time        // when an event came last
	alive   time.Time        // when the server last gave a sign of life
	aborted string           // why the conversation was stopped by us
	noted   string           // the last trouble that people were told of
}

// work is the agent's whole life; nil: all prompts are worked on.
func (w *worker) work(life, going context.Context) error {
	var err error
	if w.srv, err = w.start.start(life, going, false); err != nil {
		return err
	}
	defer func() { w.srv.end() }()
	// Both at once: what one waits for is time for the other.
	var priming sync.WaitGroup
	priming.Go(func() { w.srv.prime(going) })
	w.id, err = w.srv.create(going, bootTime, "Inspect")
	priming.Wait()
	if err == nil {
		w.book = newBook(w.tell, w.id)
		w.markReady()
		err = w.tune(going)
	}
	if cause := context.Cause(going); cause != nil {
		return cause
	}
	if err != nil {
		select {
		case <-w.srv.over:
			return w.srv.ended()
		default:
			return &bootError{err.Error()}
		}
	}
	w.heard, w.alive = w.clock.Now(), w.clock.Now()
	err = w.loop(life, going)
	if len(w.posted) > 0 && !errors.Is(err, stream.ErrEnded) && context.Cause(life) == nil {
		w.windUp(life, err != nil)
	}
	return err
}

// tune has the events come, and waits for their begin.
func (w *worker) tune(going context.Context) error {
	w.srv.tune(w.events)
	late := w.clock.After(callTime)
	for {
		select {
		case e := <-w.events:
			if e == nil {
				return nil
			}
		case <-w.srv.over:
			return nil // the loop sees to it
		case <-late:
			return errors.New("it tells nothing")
		case <-going.Done():
			return context.Cause(going)
		}
	}
}

func (w *worker) loop(life, going context.Context) error {
	tick := w.clock.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		if err := w.give(going); err != nil {
			return err
		}
		var over bool
		var err error
		select {
		case <-w.wake:
		case e := <-w.events:
			over, err = w.hear(going, e)
		case <-tick.C():
			over, err = w.look(life, going)
		case <-w.retry:
			w.retry = nil
			err = w.again(going)
		case <-w.srv.over:
			over, err = w.restart(life, going)
		case <-going.Done():
			err = context.Cause(going)
		}
		if over || err != nil {
			return err
		}
	}
}

// windUp stops what the agent is at and tells what is not told yet.
func (w *worker) windUp(life context.Context, running bool) {
	if running {
		_ = w.srv.abort(life, w.id)
	}
	if all, err := w.srv.messages(life, w.id, lastMessages); err == nil {
		w.book.read(all)
	}
}

// give posts the prompts and notices that wait.
func (w *worker) give(ctx context.Context) error {
	for {
		p := w.next()
		if p == nil {
			return nil
		}
		p.id = w.newID()
		if p.notice {
			w.quiet[p.id] = true
			err := w.srv.put(ctx, w.id, p.id, p.text)
			p.reached <- err == nil
			continue
		}
		if len(w.posted) == 0 {
			w.before = w.book.useful
		}
		w.posted = append(w.posted, p)
		w.doubt, w.retry = time.Time{}, nil
		if err := w.post(ctx, p.id, p.text); err != nil {
			return err
		}
	}
}

// post hands over a message. That the server did not take it is found by look,
// which posts it again.
func (w *worker) post(ctx context.Context, id, text string) error {
	err := w.srv.post(ctx, w.id, id, text)
	var refused *statusError
	switch {
	case errors.As(err, &refused) && refused.code < 500:
		return &failure{"OpenCode did not take the prompt: " + refused.words}
	case err == nil:
		w.alive = w.clock.Now()
	}
	return nil
}

func (w *worker) hear(ctx context.Context, e *event) (over bool, err error) {
	w.heard = w.clock.Now()
	if e == nil { // a stream begins
		return w.catchUp(ctx)
	}
	if e.Type != "server.connected" { // which it says before it has done anything
		w.alive = w.heard
	}
	w.book.hear(*e)
	p := e.Properties
	switch {
	case p.SessionID != w.id && p.Info.SessionID != w.id:
		return false, nil
	case e.Type == "message.updated":
		return false, w.watch(ctx)
	case e.Type == "session.status" && p.Status.Type == "retry":
		return false, w.waits(ctx, p.Status)
	case e.Type == "session.idle":
		return w.check(ctx)
	}
	return false, nil
}

// catchUp reads what may have happened while no events came.
func (w *worker) catchUp(ctx context.Context) (over bool, err error) {
	if len(w.posted) == 0 {
		return false, nil
	}
	children, err := w.srv.children(ctx, w.id)
	if err != nil {
		return false, nil // there will be another occasion
	}
	for _, c := range children {
		w.book.ours[c] = true
		if all, err := w.srv.messages(ctx, c, 0); err == nil {
			w.book.read(all)
		}
	}
	if all, err := w.srv.messages(ctx, w.id, 0); err == nil {
		w.book.read(all)
	}
	return w.check(ctx)
}

// watch stops a conversation that would go on for ever without getting anywhere.
func (w *worker) watch(ctx context.Context) error {
	if w.aborted != "" {
		return nil
	}
	switch {
	case w.book.cut >= maxCut:
		w.aborted = "the model's answers end in the middle"
		_ = w.srv.abort(ctx, w.id)
	case w.book.nonsense >= maxNonsense:
		return &failure{fmt.Sprintf("the model answered nothing usable: %d times in a row it called tools that there are not, or not so that they could be run", w.book.nonsense)}
	}
	return nil
}

// waits tells people that OpenCode tries again.
func (w *worker) waits(ctx context.Context, s status) error {
	if next := time.UnixMilli(s.Next); next.Sub(w.clock.Now()) > maxWait {
		return &failure{fmt.Sprintf("the model is not to be asked before %s: %s", next.UTC().Format("15:04 MST"), plain(s.Message))}
	}
	w.note("The model could not be asked; OpenCode tries again: " + plain(s.Message))
	return nil
}

// note tells people something, but not again and again.
func (w *worker) note(words string) {
	if words != w.noted {
		w.noted = words
		w.tell.Note(words)
	}
}

// look is what happens from time to time: events may be missing, the server
// may be stuck.
func (w *worker) look(life, ctx context.Context) (over bool, err error) {
	now := w.clock.Now()
	if now.Sub(w.heard) > quietTime {
		w.heard = now
		w.srv.retune()
	}
	if len(w.posted) == 0 {
		if now.Sub(w.alive) > quietTime && w.srv.health(ctx) == nil {
			w.alive = now
		}
	} else if over, err = w.check(ctx); over || err != nil {
		return over, err
	}
	if now.Sub(w.alive) > deadTime {
		w.srv.stop(errUnresponsive)
		return w.restart(life, ctx)
	}
	return false, nil
}

// check looks whether the conversation rests, and what that means.
func (w *worker) check(ctx context.Context) (over bool, err error) {
	if len(w.posted) == 0 || w.retry != nil {
		return false, nil
	}
	s, err := w.srv.status(ctx, w.id)
	if err != nil {
		return false, nil // look sees to a server that does not answer
	}
	w.alive = w.clock.Now()
	if !s.idle() {
		w.doubt = time.Time{}
		return false, nil
	}
	all, err := w.srv.messages(ctx, w.id, lastMessages)
	if err != nil {
		return false, nil
	}
	w.book.read(all)
	v, upTo, why := w.book.judge(all, w.quiet)
	switch {
	case v == failed:
		return false, w.trouble(why)
	case v == unanswered:
		return false, w.doubtful(ctx, all, why)
	case w.book.useful == w.before:
		return false, w.trouble(nil)
	}
	return w.answered(upTo), nil
}

// answered tells of the prompts up to a message that they are done.
func (w *worker) answered(upTo string) (over bool) {
	w.tries, w.before, w.useful = 0, w.book.useful, w.book.useful
	w.doubt, w.noted, w.aborted = time.Time{}, "", ""
	left := false
	for _, p := range w.posted {
		if p.id <= upTo {
			w.markDone(p)
		} else {
			left = true
		}
	}
	return !left && w.closeIfDone()
}

// doubtful is a conversation that rests although it has something to do. A
// prompt may be on its way; after a while it is taken up.
func (w *worker) doubtful(ctx context.Context, all []message, why *problem) error {
	now := w.clock.Now()
	if w.doubt.IsZero() {
		w.doubt = now
	}
	if now.Sub(w.doubt) < checkEvery && w.aborted == "" {
		return nil
	}
	w.doubt = time.Time{}
	if p := w.lost(all); p != nil {
		return w.post(ctx, p.id, p.text)
	}
	if why == nil {
		why = &problem{Name: "it stopped in the middle"}
	}
	return w.trouble(why)
}

// lost is a prompt that OpenCode does not know.
func (w *worker) lost(all []message) *prompt {
	known := map[string]bool{}
	for _, m := range all {
		known[m.Info.ID] = true
	}
	for _, p := range w.posted {
		if !p.done && !known[p.id] && (len(all) == 0 || p.id > all[0].Info.ID) {
			return p
		}
	}
	return nil
}

// trouble decides whether the conversation is taken up again. No reason: the
// model said nothing at all.
func (w *worker) trouble(why *problem) error {
	if w.book.useful > w.useful {
		w.useful, w.tries = w.book.useful, 0
	}
	words, most := "the model answered nothing", 1
	if why != nil {
		words, most = why.words(), maxTries
	}
	if w.aborted != "" {
		words, most, why, w.aborted = w.aborted, maxTries, nil, ""
		w.book.cut = 0
	}
	if why != nil && !why.curable() || w.tries >= most {
		return &failure{words}
	}
	w.tries++
	w.note("OpenCode stopped; it is told to go on: " + words)
	w.retry = w.clock.After(tryPause(w.tries))
	return nil
}

// again has OpenCode go on from where it is: the model is asked the same again.
func (w *worker) again(ctx context.Context) error {
	w.book.trouble = nil
	return w.post(ctx, w.newID(), "")
}

// restart starts a server that has ended by itself anew.
func (w *worker) restart(life, ctx context.Context) (over bool, err error) {
	w.srv.end()
	err = w.srv.ended()
	var boot *bootError
	switch {
	case context.Cause(life) != nil:
		return false, context.Cause(life)
	case !errors.As(err, &boot) && !errors.Is(err, errUnresponsive):
		return false, err
	}
	words := "OpenCode does not answer any more"
	if boot != nil {
		words = "OpenCode broke off: " + boot.words
	}
	if w.crashes++; w.crashes > maxCrashes {
		return false, &failure{words}
	}
	w.tell.Note(words + "; it is started again.")
	srv, err := w.start.start(life, ctx, true)
	if err != nil {
		return false, err
	}
	w.srv = srv
	if err := w.tune(ctx); err != nil {
		return false, err
	}
	w.heard, w.alive = w.clock.Now(), w.clock.Now()
	w.doubt = w.alive.Add(-checkEvery) // nothing is on its way: what is open is taken up
	return w.catchUp(ctx)
}

// newID is an id of a message as OpenCode makes them: they sort by their time.
func (w *worker) newID() string {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	n := w.clock.Now().UnixMilli() << 12
	if n <= w.count {
		n = w.count + 1
	}
	w.count = n
	var b [8]byte
	for i := range b {
		b[i] = byte(n >> (56 - 8*i))
	}
	id := []byte("msg_" + hex.EncodeToString(b[2:]))
	for range 14 {
		k, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			panic(err) // the system has no randomness
		}
		id = append(id, letters[k.Int64()])
	}
	return string(id)
}

var _ harness.Session = (*session)(nil)
