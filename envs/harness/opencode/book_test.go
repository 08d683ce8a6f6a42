package opencode

import (
	"fmt"
	"strings"
	"testing"
)

// A server that is not OpenCode, but something that stands in for it, cannot
// have more remembered than there is room for.
func TestBookIsBounded(t *testing.T) {
	b := newBook(nil, "main")
	long := strings.Repeat("x", 1<<20)
	hear := func(i info) { b.hear(event{Type: "message.updated", Properties: properties{Info: i}}) }
	hear(info{ID: long, SessionID: "main", Role: "assistant"})
	if len(b.messages) != 0 {
		t.Error("a long id was remembered")
	}
	for n := range maxKnown + 100 {
		hear(info{ID: fmt.Sprint("m", n), SessionID: "main", Role: "assistant", Error: &problem{Name: long}})
		b.hear(event{Type: "session.created", Properties: properties{Info: info{ID: fmt.Sprint("s", n), ParentID: "main"}}})
		if n > 3 {
			long = "" // it was cut three times
		}
	}
	if len(b.messages) > maxKnown || len(b.ours) > maxKnown {
		t.Errorf("%d messages, %d conversations", len(b.messages), len(b.ours))
	}
	if e := b.messages["m1"]; e == nil || len(e.Error.Name) > maxID {
		t.Errorf("%+v", e)
	}
}
