package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"inspect/envs/spec"
)

// Priority of a session in the queue: what a command asks for, else the highest
// that the operator gives to one of the labels. Asking for more than
// the bounds allow is a *BeyondError; where none says anything, that is 0.
func (b Bounds) Priority(asked int, labels []string) (int, error) {
	if asked == 0 {
		highest := 0
		for _, name := range labels {
			highest = max(highest, b.labelPriority(strings.ToLower(name)))
		}
		return highest, nil
	}
	if most, from := b.mostPriority(); asked > most {
		return 0, &BeyondError{What: []Beyond{{Key: "--priority", Asked: intWords(asked), Most: intWords(most), From: from}}}
	}
	return asked, nil
}

// mostPriority is the most that a command may ask for, and who says so.
func (b Bounds) mostPriority() (most int, from string) {
	for _, l := range b {
		if p := l.keys.Priority; p != nil && (from == "" || *p < most) {
			most, from = *p, l.from
		}
	}
	return most, cmp.Or(from, fromDefault)
}

// labelPriority is the smallest that the bounds give to a label; 0: none.
func (b Bounds) labelPriority(name string) (priority int) {
	for _, l := range b {
		if p := l.keys.PriorityLabels[name]; p > 0 && (priority == 0 || p < priority) {
			priority = p
		}
	}
	return priority
}

// openPullRequests lowers how many may be open to the smallest of the floors; a
// repository that says nothing has none of its own.
func (e *effect) openPullRequests(key string, of func(*spec.Limits) *int) {
	out := of(&e.out.Limits)
	asked := *out
	value := Value{Key: key, Value: pullWords(asked), From: spec.FileName}
	if asked == 0 {
		value.From = fromDefault
	}
	for _, l := range e.bounds {
		if most := *of(&l.keys.Limits); most > 0 && (*out == 0 || most < *out) {
			*out = most
			value.Value, value.From, value.Instead = pullWords(most), l.from, pullWords(asked)
		}
	}
	if asked == 0 {
		value.Instead = ""
	}
	e.values = append(e.values, value)
}

func pullWords(n int) string {
	if n == 0 {
		return "any number"
	}
	return intWords(n)
}

// priority tells what Priority goes by.
func (e *effect) priority() {
	most, from := e.bounds.mostPriority()
	e.values = append(e.values, Value{Key: "limits.priority", Value: intWords(most), From: from})
	for _, l := range e.bounds {
		for _, name := range slices.Sorted(maps.Keys(l.keys.PriorityLabels)) {
			e.values = append(e.values, Value{Key: "priority_labels", Value: name + ": " + intWords(l.keys.PriorityLabels[name]), From: l.from})
		}
	}
}
