package services

import (
	"strings"
	"sync"

	"inspect/checks/redact"
	"inspect/envs/proc"
)

// log keeps the end of what a service says. It is safe for concurrent use.
type log struct {
	mu   sync.Mutex
	tail proc.Tail
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail.N = logKept
	return l.tail.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.tail.Bytes()))
}

// lastLine is the last line of some output, for a sentence.
func lastLine(out []byte) string {
	s := strings.TrimSpace(string(out))
	return redact.OneLine(redact.Visible(s[strings.LastIndexByte(s, '\n')+1:]), 300)
}
