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

// Log is the end of what a service has said.
type Log struct {
	Service string
	Text    string // at most logKept bytes, without secrets
}

// Logs are those of the services that have said something. One that was cut
// begins at a line: the rest of a secret would not be known for one.
func (set *Set) Logs() (out []Log) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, s := range set.services {
		if text := set.o.Redact.String(s.log.whole()); text != "" {
			out = append(out, Log{s.Name, redact.Visible(text)})
		}
	}
	return out
}

func (l *log) whole() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(l.tail.Bytes())
	if l.tail.Cut() {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}
