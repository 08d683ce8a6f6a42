package shot

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"

	"inspect/envs/wire"
)

// maxGoing bounds the requests that are kept track of at a time.
const maxGoing = 10_000

// seen is what the browser has told of a page so far.
type seen struct {
	mu    sync.Mutex
	going map[network.RequestID]string // addresses of requests
	last  time.Time                    // when one began or ended

	main     network.RequestID // of the page itself
	answered int               // its status; 0: there is no answer
	errors   []string
	requests []wire.ShotRequest
	more     [2]int // of each
}

func newSeen() *seen { return &seen{going: map[network.RequestID]string{}, last: time.Now()} }

func (s *seen) event(ev any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		if s.main == "" && ev.Type == network.ResourceTypeDocument {
			s.main = ev.RequestID
		}
		if len(s.going) < maxGoing && ev.Request != nil {
			s.going[ev.RequestID] = text(ev.Request.URL)
			s.last = time.Now()
		}
	case *network.EventResponseReceived:
		if ev.Response == nil {
			return
		}
		if ev.RequestID == s.main {
			s.answered = int(ev.Response.Status)
		}
		// Nobody asked for the icon that browsers look for.
		if ev.Response.Status >= 400 && !strings.HasSuffix(ev.Response.URL, "/favicon.ico") {
			s.failed(text(ev.Response.URL), fmt.Sprintf("status %d", ev.Response.Status))
		}
	case *network.EventLoadingFailed:
		address := s.going[ev.RequestID]
		s.end(ev.RequestID)
		if !ev.Canceled {
			words := ev.ErrorText
			if ev.BlockedReason != "" {
				words += ", blocked: " + string(ev.BlockedReason)
			}
			s.failed(address, text(words))
		}
	case *network.EventLoadingFinished:
		s.end(ev.RequestID)
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeAssert {
			s.error(arguments(ev.Args))
		}
	case *runtime.EventExceptionThrown:
		if d := ev.ExceptionDetails; d != nil {
			words := d.Text
			if d.Exception != nil && d.Exception.Description != "" {
				words += " " + d.Exception.Description
			}
			s.error(words)
		}
	case *log.EventEntryAdded:
		// Those of the network are among the requests already.
		if e := ev.Entry; e != nil && e.Level == log.EntryLevelError && e.Source != log.EntrySourceNetwork {
			s.error(e.Text)
		}
	}
}

func (s *seen) end(id network.RequestID) {
	delete(s.going, id)
	s.last = time.Now()
}

func (s *seen) error(words string) {
	if len(s.errors) == wire.MaxShotLines {
		s.more[0]++
		return
	}
	s.errors = append(s.errors, text(words))
}

func (s *seen) failed(address, words string) {
	if len(s.requests) == wire.MaxShotLines {
		s.more[1]++
		return
	}
	s.requests = append(s.requests, wire.ShotRequest{URL: address, Words: words})
}

// arguments is a call of the console as people read it.
func arguments(args []*runtime.RemoteObject) string {
	var out []string
	for i, a := range args {
		var s string
		switch {
		case i == 20:
			return strings.Join(out, " ") + " …"
		case a == nil:
		case json.Unmarshal(a.Value, &s) == nil && s != "":
			out = append(out, s)
		case a.Description != "":
			out = append(out, a.Description)
		default:
			out = append(out, string(a.Value))
		}
	}
	return strings.Join(out, " ")
}

func (s *seen) status() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered
}

// rest waits until no request has gone on for a while, but not for long.
func (s *seen) rest(ctx context.Context) {
	end := time.NewTimer(longestRest)
	defer end.Stop()
	look := time.NewTicker(atRest / 10)
	defer look.Stop()
	for {
		s.mu.Lock()
		quiet := len(s.going) == 0 && time.Since(s.last) >= atRest
		s.mu.Unlock()
		if quiet {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-look.C:
		}
	}
}

// tell puts what was seen into a record.
func (s *seen) tell(out *wire.Shot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Status, out.Errors, out.Requests = s.answered, s.errors, s.requests
	out.MoreErrors, out.MoreRequests = s.more[0], s.more[1]
}
