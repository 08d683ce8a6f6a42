package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/scheduler"
	"inspect/scheduler/audit"
	"inspect/storage"
)

// exitUnread is the exit status of an audit of what cannot be read.
const exitUnread = 3

type unreadError struct{ error }

func (unreadError) ExitCode() int   { return exitUnread }
func (e unreadError) Unwrap() error { return e.error }

// unprovedError ends an audit that found nothing wrong and could not find out.
type unprovedError struct{ error }

func (unprovedError) ExitCode() int { return exitFailed }

// unread marks errors that say neither that a record is whole nor that it is broken.
func unread(err error) error {
	var coded interface{ ExitCode() int }
	if err == nil || errors.Is(err, audit.ErrBroken) || errors.As(err, &coded) {
		return err
	}
	return unreadError{err}
}

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "The record of what sessions did: show, verify, export",
	}
	cmd.AddCommand(auditShowCommand(), auditVerifyCommand(), auditExportCommand())
	return cmd
}

// auditing gives a command the database.
func auditing(d *dataFlags, run func(cmd *cobra.Command, db *storage.DB, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		db, err := openDatabase(cmd.Context(), *d)
		if err != nil {
			return unread(err)
		}
		defer db.Close()
		return unread(run(cmd, db, args))
	}
}

func auditShowCommand() *cobra.Command {
	var d dataFlags
	var asJSON bool
	var kinds []string
	cmd := &cobra.Command{
		Use:   "show SESSION",
		Short: "Print the events of a session (its id, or the beginning of it)",
		Args:  cobra.ExactArgs(1),
		RunE: auditing(&d, func(cmd *cobra.Command, db *storage.DB, args []string) error {
			id, err := findSession(cmd.Context(), db, args[0])
			if err != nil {
				return err
			}
			return db.InReadTx(cmd.Context(), func(tx *storage.Tx) error {
				s, events, err := scheduler.Chain(cmd.Context(), tx.Q(), id)
				if err != nil {
					return err
				}
				return showEvents(cmd.OutOrStdout(), s, events, asJSON, kinds)
			})
		}),
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line, as in an export")
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "only events of these kinds: created, state, tool, command, usage, egress, github, …")
	return withEnvironment(cmd)
}

// maxShown is the most bytes shown of one event in a table.
const maxShown = 200

func showEvents(out io.Writer, s audit.Session, events audit.Source, asJSON bool, kinds []string) error {
	if !asJSON {
		fmt.Fprintf(out, "session %s of %s, %s, %d events, head %s\n", s.Session, redact.OneLine(s.Repository, maxShown), s.State, s.Count, hex.EncodeToString(s.Head))
		if r := s.Removed; r != nil {
			fmt.Fprintf(out, "events 1 to %d were removed on %s\n", r.Count, r.At.UTC().Format(time.DateOnly))
		}
		fmt.Fprintf(out, "%6s  %-24s  %3s  %-8s  %s\n", "EVENT", "TIME", "TRY", "KIND", "WHAT")
	}
	return events(func(e audit.Event) error {
		if len(kinds) > 0 && !slices.Contains(kinds, e.Kind) {
			return nil
		}
		if asJSON {
			line, err := e.Line()
			if err == nil {
				_, err = out.Write(append(line, '\n'))
			}
			return err
		}
		_, err := fmt.Fprintf(out, "%6d  %-24s  %3d  %-8s  %s\n", e.Seq, e.At.UTC().Format("2006-01-02T15:04:05.000Z"), e.Generation,
			redact.OneLine(e.Kind, 40), redact.OneLine(inWords(e.Data), maxShown))
		return err
	})
}

// inWords is an event's data as key=value pairs.
func inWords(data []byte) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		return string(data)
	}
	var out []string
	for k, v := range m {
		var s string
		if json.Unmarshal(v, &s) != nil {
			s = string(v)
		} else if s == "" {
			continue
		} else if strings.ContainsAny(s, " \t\n\"") {
			s = strconv.Quote(s)
		}
		out = append(out, k+"="+s)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

var idPrefix = regexp.MustCompile(`^[a-z2-7]{1,10}$`)

// findSession is the id of the one session that begins like that. No such
// session is errNoSession.
func findSession(ctx context.Context, db *storage.DB, prefix string) (string, error) {
	if !idPrefix.MatchString(prefix) {
		return "", usagef("%.40q is no session: expected up to ten characters a-z and 2-7", prefix)
	}
	ids, err := db.Q().AuditSessionsLike(ctx, prefix)
	switch {
	case err != nil:
		return "", fmt.Errorf("looking for session %s: %w", prefix, err)
	case len(ids) == 0:
		return "", usageError{fmt.Errorf("%w that begins with %s", errNoSession, prefix)}
	case len(ids) > 1 && ids[0] != prefix:
		return "", usagef("more than one session begins with %s: %s, %s, …", prefix, ids[0], ids[1])
	}
	return ids[0], nil
}

var errNoSession = errors.New("there is no session")

// verifyFlags are the flags of `inspect audit verify`.
type verifyFlags struct {
	dataFlags
	against []string
	head    string
	count   int64
	all     bool
	file    string
}

func auditVerifyCommand() *cobra.Command {
	var c verifyFlags
	cmd := &cobra.Command{
		Use:   "verify [SESSION | --all | --file EXPORT]",
		Short: "Check that nothing in the record was changed, removed or reordered",
		Long: `Checks the chain of hashes over a session's events. Whoever can write to the
database can also make the hashes fit: what proves the record is a head that was
noted elsewhere, in the manifest of the evidence, the check run or the process
log. --against takes a manifest, a receipt or lines of the log in JSON, also of
many sessions; all of them must be met.

Exit status: 0 whole, 1 broken or not to be proved, 2 usage, 3 cannot be read.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return unread(c.run(cmd.Context(), cmd.OutOrStdout(), args))
		},
	}
	f := cmd.Flags()
	c.flags(f)
	f.StringSliceVar(&c.against, "against", nil, "files with heads that were noted elsewhere")
	f.StringVar(&c.head, "head", "", "a head that was noted elsewhere, 64 hexadecimal digits, with --count")
	f.Int64Var(&c.count, "count", 0, "the number of events up to --head")
	f.BoolVar(&c.all, "all", false, "every session")
	f.StringVar(&c.file, "file", "", "an export, instead of the database")
	return withEnvironment(cmd)
}

func (c *verifyFlags) run(ctx context.Context, out io.Writer, args []string) error {
	anchors, err := c.anchors()
	if err != nil {
		return err
	}
	session := ""
	switch {
	case len(args) == 1:
		if session = args[0]; c.all || !idPrefix.MatchString(session) {
			return usagef("expected the id of a session or --all, but found %.40q", session)
		}
	case c.all, c.file != "":
	case len(anchors) > 0 && anchors[0].Session != "" && !slices.ContainsFunc(anchors, func(a audit.Anchor) bool { return a.Session != anchors[0].Session }):
		session = anchors[0].Session
	default:
		return usagef("which session? Name it, or give --all or --file")
	}
	v := &verification{out: out, anchors: anchors, session: session, seen: map[string]bool{}}
	if session == "" && slices.ContainsFunc(anchors, func(a audit.Anchor) bool { return a.Session == "" }) {
		return usagef("a receipt or --head that does not say of which session it is needs the session's id")
	}
	if c.file != "" {
		err = v.file(c.file)
	} else {
		err = v.database(ctx, c.dataFlags)
	}
	if err != nil {
		return err
	}
	return v.end()
}

// anchors are the heads that were noted elsewhere.
func (c *verifyFlags) anchors() ([]audit.Anchor, error) {
	var out []audit.Anchor
	if c.head != "" || c.count != 0 {
		a := audit.Anchor{Count: c.count, Head: c.head, From: "--head"}
		if err := a.Valid(); err != nil {
			return nil, usagef("--head and --count: %w", err)
		}
		out = append(out, a)
	}
	for _, name := range c.against {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		found, err := audit.ReadAnchors(f, name)
		f.Close()
		if err != nil {
			return nil, usagef("--against: %w", err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// verification tells about sessions one after another.
type verification struct {
	out     io.Writer
	anchors []audit.Anchor
	session string // the only one; "" for all
	seen    map[string]bool

	whole, broken, removed int
	unknown                int // heads noted elsewhere of which nothing is kept
}

func (v *verification) database(ctx context.Context, d dataFlags) error {
	db, err := openDatabase(ctx, d)
	if err != nil {
		return err
	}
	defer db.Close()
	if v.session != "" {
		id, err := findSession(ctx, db, v.session)
		if errors.Is(err, errNoSession) && len(v.anchors) > 0 {
			return nil // end says that it is missing
		}
		if err != nil {
			return err
		}
		v.session = id
	}
	return eachSession(ctx, db, v.session, time.Time{}, func(q *storage.Queries, id string) error {
		s, found, err := scheduler.CheckChain(ctx, q, id, v.anchors)
		return v.visit(s, found, err)
	})
}

// eachSession calls fn for one session, or for all that were not over before a
// moment, each in a transaction of its own.
func eachSession(ctx context.Context, db *storage.DB, session string, since time.Time, fn func(q *storage.Queries, id string) error) error {
	one := func(id string) error {
		return db.InReadTx(ctx, func(tx *storage.Tx) error { return fn(tx.Q(), id) })
	}
	if session != "" {
		return one(session)
	}
	for after := ""; ; {
		ids, err := db.Q().AuditSessions(ctx, storage.AuditSessionsParams{After: after, Since: since, AtMost: 1000})
		if err != nil {
			return fmt.Errorf("listing the sessions: %w", err)
		}
		if len(ids) == 0 {
			return nil
		}
		for _, id := range ids {
			if err := one(id); err != nil {
				return err
			}
		}
		after = ids[len(ids)-1]
	}
}

func (v *verification) file(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return audit.OpenExport(f, name).Check(v.anchors, func(s audit.Session, found audit.Result, err error) error {
		if v.session != "" && !strings.HasPrefix(s.Session, v.session) {
			return nil
		}
		return v.visit(s, found, err)
	})
}

// visit tells what was found of a session.
func (v *verification) visit(s audit.Session, found audit.Result, err error) error {
	v.seen[s.Session] = true
	v.unknown += found.Unknown
	var broken *audit.Broken
	switch {
	case errors.As(err, &broken):
		v.broken++
		fmt.Fprintf(v.out, "%s: BROKEN: %s\n", s.Session, redact.Visible(broken.Words))
		return nil
	case err != nil:
		return err
	case s.Removed != nil && (found.Met == 0 || found.Unknown > 0):
		v.removed++
		fmt.Fprintf(v.out, "%s: events 1 to %d were removed by retention on %s; the recorded head is %s: only a head that was noted elsewhere can prove it\n",
			s.Session, s.Removed.Count, s.Removed.At.UTC().Format(time.DateOnly), hex.EncodeToString(s.Removed.Head))
		return nil
	}
	v.whole++
	fmt.Fprintf(v.out, "%s: whole: %d events, head %s", s.Session, found.Count, hex.EncodeToString(found.Head))
	if s.Removed != nil {
		fmt.Fprintf(v.out, "; events 1 to %d were removed by retention on %s", s.Removed.Count, s.Removed.At.UTC().Format(time.DateOnly))
	}
	if found.Met > 0 {
		fmt.Fprintf(v.out, "; as noted elsewhere, %d×", found.Met)
	}
	fmt.Fprintln(v.out)
	return nil
}

// end tells of what was noted of sessions that are not there, and sums up.
func (v *verification) end() error {
	mine := func(a audit.Anchor) bool {
		return v.session == "" || a.Session == "" || strings.HasPrefix(a.Session, v.session)
	}
	if len(v.anchors) > 0 && !slices.ContainsFunc(v.anchors, mine) {
		return usagef("what --against gives is not about session %s", v.session)
	}
	for _, a := range v.anchors {
		if a.Session == "" {
			a.Session = v.session
		}
		if !mine(a) || v.seen[a.Session] {
			continue
		}
		v.broken++
		v.seen[a.Session] = true
		fmt.Fprintf(v.out, "%s: BROKEN: the session is missing; %s names %d events of it\n", redact.OneLine(a.Session, maxShown), a.From, a.Count)
	}
	total := v.whole + v.broken + v.removed
	switch {
	case v.broken > 0:
		return fmt.Errorf("%w: broken are %d of %d sessions", audit.ErrBroken, v.broken, total)
	case v.unknown > 0:
		return unprovedError{fmt.Errorf("heads that were noted elsewhere and cannot be compared, since their events were removed and no hash of them is kept: %d", v.unknown)}
	case v.session != "" && v.removed > 0:
		return unprovedError{errors.New("nothing is left that could be checked without a head that was noted elsewhere: give --against, or --head and --count")}
	case v.session != "" && total == 0:
		return usageError{fmt.Errorf("%w that begins with %s", errNoSession, v.session)}
	case v.session == "":
		fmt.Fprintf(v.out, "%d sessions: %d whole, %d removed by retention", total, v.whole, v.removed)
		if v.removed > 0 {
			fmt.Fprint(v.out, ", which only the record itself says")
		}
		fmt.Fprintln(v.out)
	}
	return nil
}

func auditExportCommand() *cobra.Command {
	var d dataFlags
	var all bool
	var since keepTime
	cmd := &cobra.Command{
		Use:   "export SESSION | --all",
		Short: "Write the record as JSON lines that `inspect audit verify --file` can check",
		Args:  cobra.MaximumNArgs(1),
		RunE: auditing(&d, func(cmd *cobra.Command, db *storage.DB, args []string) error {
			session := ""
			switch {
			case len(args) == 1 && !all:
				var err error
				if session, err = findSession(cmd.Context(), db, args[0]); err != nil {
					return err
				}
			case !all || len(args) > 0:
				return usagef("expected the id of a session or --all")
			}
			x := audit.NewExporter(cmd.OutOrStdout())
			err := eachSession(cmd.Context(), db, session, time.Time(since), func(q *storage.Queries, id string) error {
				s, events, err := scheduler.Chain(cmd.Context(), q, id)
				if err != nil {
					return err
				}
				return x.Session(s, events)
			})
			if err != nil {
				return err
			}
			return x.Close()
		}),
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&all, "all", false, "every session")
	cmd.Flags().Var(&since, "since", "only sessions that were not over before then: a date, or how long ago, as in 30d")
	return withEnvironment(cmd)
}

// keepDuration is a duration flag that knows days.
type keepDuration time.Duration

func (k *keepDuration) String() string {
	if *k == 0 {
		return ""
	}
	return time.Duration(*k).String()
}

// Type names the kind of value in help.
func (*keepDuration) Type() string { return "duration" }

// Set reads 400d, or a duration as Go writes it.
func (k *keepDuration) Set(s string) error {
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, nerr := strconv.ParseUint(days, 10, 16)
		d, err = time.Duration(n)*24*time.Hour, nerr
	}
	if err != nil || d < audit.MinKeep {
		return fmt.Errorf("expected days or hours, at least one hour, as in 400d or 36h, but found %.40q", s)
	}
	*k = keepDuration(d)
	return nil
}

// keepTime is a moment in the past as a flag.
type keepTime time.Time

func (k *keepTime) String() string {
	if time.Time(*k).IsZero() {
		return ""
	}
	return time.Time(*k).Format(time.RFC3339)
}

// Type names the kind of value in help.
func (*keepTime) Type() string { return "time" }

// Set reads a date, a moment, or how long ago it was.
func (k *keepTime) Set(s string) error {
	for _, form := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(form, s); err == nil {
			*k = keepTime(t)
			return nil
		}
	}
	var ago keepDuration
	if ago.Set(s) != nil {
		return fmt.Errorf("expected a date as in 2026-11-29, a moment as in 2026-11-29T10:00:00Z or how long ago as in 30d, but found %.40q", s)
	}
	*k = keepTime(time.Now().Add(-time.Duration(ago)))
	return nil
}
