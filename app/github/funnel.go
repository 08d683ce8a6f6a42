package github

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"inspect/checks/redact"
)

// Byte limits of the texts we send. GitHub documents characters and counts
// bytes in some places, so bytes are kept everywhere.
const (
	MaxComment    = 65_536 // comment and pull request body: "Body is too long" above it
	MaxTitle      = 255    // check run output title, annotation title
	MaxPullTitle  = 256
	MaxCheckText  = 65_000   // summary and text: 65,535 bytes at GitHub, less head-room
	MaxReviewers  = 15       // asked with one request
	MaxAnnotation = 64 << 10 // message and raw_details of one annotation
	maxBody       = 24 << 20 // one request in all
	perBatch      = 50       // annotations in one request
	maxName       = 1 << 10  // what is no text: ids, SHAs, addresses
)

// A field says what one member of a request body may be.
type field struct {
	kind kind
	max  int            // bytes of a text or name; items of a list
	of   shape          // members of an object, or of each item of a list
	form *regexp.Regexp // of a name; nil: any
	null bool           // null is allowed
}

type kind int

const (
	text     kind = iota // for people: redacted, cut
	name                 // for machines: refused if there is a secret in it
	number               // an integer
	boolean              // true or false
	object               // a shape
	list                 // of objects
	numbers              // of integers
	names                // for machines
	file                 // of the repository: sent as it was judged, to the letter
	question             // one of questions
)

// A shape is a body with all its members; a member not listed is refused.
type shape map[string]field

var (
	commentBody = shape{"body": {kind: text, max: MaxComment}}
	graphBody   = shape{
		"query": {kind: question},
		"variables": {kind: object, of: shape{
			"owner":  {kind: name, max: 100},
			"name":   {kind: name, max: 100},
			"number": {kind: number},
		}},
	}
	reactionBody = shape{"content": {kind: name, max: 20}}
	newPullBody  = shape{
		"title": {kind: text, max: MaxPullTitle},
		"body":  {kind: text, max: MaxComment},
		"head":  {kind: name, max: maxName},
		"base":  {kind: name, max: maxName},
		"draft": {kind: boolean},
		// Asking for rights on a head that is ours anyway.
		"maintainer_can_modify": {kind: boolean},
	}
	reviewersBody = shape{
		"reviewers":      {kind: names, max: MaxReviewers},
		"team_reviewers": {kind: names, max: MaxReviewers},
	}
	blobBody = shape{"content": {kind: file, max: 4 * (MaxBlob/3 + 1)}, "encoding": {kind: name, max: 10}}
	treeBody = shape{
		"base_tree": {kind: name, max: 64},
		"tree": {kind: list, max: 10_000, of: shape{
			"path":    {kind: file, max: 4096},
			"mode":    {kind: name, max: 6},
			"type":    {kind: name, max: 6},
			"sha":     {kind: name, max: 64, null: true},
			"content": {kind: file, max: MaxTreeInline},
		}},
	}
	// No author, committer or signature: GitHub signs what has none.
	commitBody    = shape{"message": {kind: text, max: MaxComment}, "tree": {kind: name, max: 64}, "parents": {kind: names, max: 1}}
	newBranchBody = shape{"ref": {kind: name, max: maxName, form: regexp.MustCompile(`^refs/heads/.`)}, "sha": {kind: name, max: 64}}
	// A branch is never forced.
	branchBody     = shape{"sha": {kind: name, max: 64}}
	annotationBody = shape{
		"path":             {kind: name, max: maxName},
		"start_line":       {kind: number},
		"end_line":         {kind: number},
		"start_column":     {kind: number},
		"end_column":       {kind: number},
		"annotation_level": {kind: name, max: 20},
		"title":            {kind: text, max: MaxTitle},
		"message":          {kind: text, max: MaxAnnotation},
		"raw_details":      {kind: text, max: MaxAnnotation},
	}
	actionBody = shape{ // GitHub: label and identifier ≤ 20, description ≤ 40
		"label":       {kind: name, max: 20},
		"description": {kind: name, max: 40},
		"identifier":  {kind: name, max: 20},
	}
	checkRunBody = shape{
		"name":         {kind: name, max: maxName},
		"external_id":  {kind: name, max: maxName},
		"details_url":  {kind: name, max: maxName},
		"status":       {kind: name, max: 20},
		"conclusion":   {kind: name, max: 20},
		"started_at":   {kind: name, max: 40},
		"completed_at": {kind: name, max: 40},
		"output": {kind: object, of: shape{
			"title":       {kind: text, max: MaxTitle},
			"summary":     {kind: text, max: MaxCheckText},
			"text":        {kind: text, max: MaxCheckText},
			"annotations": {kind: list, max: perBatch, of: annotationBody},
		}},
		"actions": {kind: list, max: 3, of: actionBody},
	}
	newCheckRunBody = with(checkRunBody, "head_sha", field{kind: name, max: 64})
	// The permissions a token of ours may ever have. workflows and
	// administration are not among them.
	tokenBody = shape{
		"repository_ids": {kind: numbers, max: 1},
		"permissions": {kind: object, of: shape{
			"metadata":      {kind: name, max: 5},
			"contents":      {kind: name, max: 5},
			"issues":        {kind: name, max: 5},
			"pull_requests": {kind: name, max: 5},
			"checks":        {kind: name, max: 5},
			"actions":       {kind: name, max: 5},
			"merge_queues":  {kind: name, max: 5},
			"members":       {kind: name, max: 5, form: regexp.MustCompile(`^read$`)},
		}},
	}
)

func with(s shape, key string, f field) shape {
	out := make(shape, len(s)+1)
	for k, v := range s {
		out[k] = v
	}
	out[key] = f
	return out
}

// funnel is the one place every outgoing text passes.
type funnel struct {
	redactor *redact.Redactor
}

// pass returns the body as it may be sent, or an error that wraps ErrForbidden.
func (f funnel) pass(r *route, body []byte) ([]byte, error) {
	if r.body == nil {
		if len(bytes.TrimSpace(body)) > 0 {
			return nil, fmt.Errorf("%w: a body with %s /%s", ErrForbidden, r.method, r.path)
		}
		return nil, nil
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("%w: a request of %d bytes, at most %d are sent", ErrForbidden, len(body), maxBody)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var in map[string]any
	if err := d.Decode(&in); err != nil {
		return nil, fmt.Errorf("%w: a body that is no JSON object with %s /%s", ErrForbidden, r.method, r.path)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: two bodies in one request", ErrForbidden)
	}
	if err := f.object(r.body, in, ""); err != nil {
		return nil, err
	}
	if r.token {
		if err := narrow(in); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(in); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// narrow refuses to ask for a token without saying what it is for: an empty
// list of repositories means all of them to GitHub, missing permissions mean
// all that were granted. One exception: reading the names of the repositories
// of an installation, which nothing but metadata needs.
func narrow(in map[string]any) error {
	perms, _ := in["permissions"].(map[string]any)
	if len(perms) == 0 {
		return fmt.Errorf("%w: ask for a token without permissions, which means all of them", ErrForbidden)
	}
	ids, _ := in["repository_ids"].([]any)
	if len(ids) == 0 && (len(perms) != 1 || perms["metadata"] != "read") {
		return fmt.Errorf("%w: ask for a token without a repository, which means all of them", ErrForbidden)
	}
	if len(ids) > 0 && fmt.Sprint(ids[0]) == "0" {
		return fmt.Errorf("%w: ask for a token for repository 0", ErrForbidden)
	}
	return nil
}

func (f funnel) object(s shape, in map[string]any, at string) error {
	for key, v := range in {
		fd, ok := s[key]
		if !ok {
			return fmt.Errorf("%w: send the field %q", ErrForbidden, at+key)
		}
		if v == nil {
			if fd.null {
				continue
			}
			return fmt.Errorf("%w: send null as %q", ErrForbidden, at+key)
		}
		out, err := f.value(fd, v, at+key)
		if err != nil {
			return err
		}
		in[key] = out
	}
	return nil
}

func (f funnel) value(fd field, v any, at string) (any, error) {
	wrong := fmt.Errorf("%w: send a value of another kind as %q", ErrForbidden, at)
	switch fd.kind {
	case text:
		s, ok := v.(string)
		if !ok {
			return nil, wrong
		}
		return f.text(s, fd.max), nil
	case name:
		s, ok := v.(string)
		if !ok {
			return nil, wrong
		}
		if fd.form != nil && !fd.form.MatchString(s) {
			return nil, fmt.Errorf("%w: send %q as %q", ErrForbidden, f.redactor.String(redact.Cut(s, 100)), at)
		}
		return s, f.name(s, fd.max, at)
	case file:
		s, ok := v.(string)
		if !ok || len(s) > fd.max {
			return nil, wrong
		}
	case question:
		if s, ok := v.(string); !ok || !slices.Contains(questions, s) {
			return nil, fmt.Errorf("%w: ask a question that is not among ours", ErrForbidden)
		}
	case number:
		if n, ok := v.(json.Number); !ok || strings.ContainsAny(n.String(), ".eE") {
			return nil, wrong
		}
	case boolean:
		if _, ok := v.(bool); !ok {
			return nil, wrong
		}
	case object:
		m, ok := v.(map[string]any)
		if !ok {
			return nil, wrong
		}
		return m, f.object(fd.of, m, at+".")
	case list, numbers, names:
		items, ok := v.([]any)
		if !ok {
			return nil, wrong
		}
		if len(items) > fd.max {
			return nil, fmt.Errorf("%w: send %d items as %q, at most %d are allowed", ErrForbidden, len(items), at, fd.max)
		}
		item := field{kind: number}
		switch fd.kind {
		case list:
			item = field{kind: object, of: fd.of}
		case names:
			item = field{kind: name, max: 100}
		}
		for i := range items {
			out, err := f.value(item, items[i], at)
			if err != nil {
				return nil, err
			}
			items[i] = out
		}
		return items, nil
	}
	return v, nil
}

// text redacts first and cuts afterwards: a secret cut in half is no longer found.
func (f funnel) text(s string, max int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	return redact.Cut(f.redactor.String(s), max)
}

func (f funnel) name(s string, max int, at string) error {
	switch {
	case len(s) > max:
		return fmt.Errorf("%w: send %d bytes as %q, at most %d are allowed", ErrForbidden, len(s), at, max)
	case slices.ContainsFunc([]rune(s), unicode.IsControl):
		return fmt.Errorf("%w: send control characters as %q", ErrForbidden, at)
	case f.redactor.String(s) != s:
		return fmt.Errorf("%w: send a secret as %q", ErrForbidden, at)
	}
	return nil
}
