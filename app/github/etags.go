package github

import (
	lists "container/list"
	"net/http"
	"sync"
)

// Bounds on remembered answers, of one App.
const (
	maxTagged     = 1000      // answers
	maxTaggedSize = 512 << 10 // bytes of one
	maxTaggedAll  = 16 << 20  // bytes of all
)

// etags remembers answers to reads by their ETag. Every use asks GitHub whether
// the answer still holds: that costs nothing of the budget if it does. What one
// token may see another may not, so that the key says whose it is.
type etags struct {
	mu    sync.Mutex
	byKey map[etagKey]*lists.Element
	order *lists.List // of *tagged, the one used last in front
	size  int
}

type etagKey struct {
	installation, repo int64
	purpose            purpose
	url                string
}

type tagged struct {
	key    etagKey
	tag    string
	header http.Header
	body   []byte
}

func newEtags() *etags { return &etags{byKey: map[etagKey]*lists.Element{}, order: lists.New()} }

// get returns what is remembered, or nil.
func (e *etags) get(key etagKey) *tagged {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.byKey[key]
	if at == nil {
		return nil
	}
	e.order.MoveToFront(at)
	return at.Value.(*tagged)
}

// learn remembers an answer, or forgets the one before it.
func (e *etags) learn(key etagKey, a *answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at := e.byKey[key]; at != nil {
		e.forget(at)
	}
	tag := a.header.Get("ETag")
	if tag == "" || a.status != http.StatusOK || len(a.body) > maxTaggedSize {
		return
	}
	e.byKey[key] = e.order.PushFront(&tagged{key, tag, a.header, a.body})
	e.size += len(a.body)
	for e.order.Len() > maxTagged || e.size > maxTaggedAll {
		e.forget(e.order.Back())
	}
}

func (e *etags) forget(at *lists.Element) {
	t := e.order.Remove(at).(*tagged)
	delete(e.byKey, t.key)
	e.size -= len(t.body)
}
