package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"inspect/app/publish"
	"inspect/checks/evidence"
	"inspect/scheduler"
	"inspect/storage"
)

func evidenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evidence",
		Short: "The evidence of sessions: verify, export, schema",
	}
	cmd.AddCommand(evidenceVerifyCommand(), evidenceExportCommand(), &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the manifest",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := evidence.Schema()
			if err == nil {
				_, err = cmd.OutOrStdout().Write(body)
			}
			return err
		},
	})
	return cmd
}

// errEvidence is the error of evidence that is not as its manifest says.
var errEvidence = errors.New("the evidence is not what its manifest says")

// bundle is evidence as it was found somewhere.
type bundle struct {
	manifest []byte
	digest   string // by the receipt; empty: there is none
	source   string // where that receipt is from
	outside  bool   // and that is not where the evidence is
	found    func(evidence.File) (evidence.Sum, error)
	archive  *evidence.Archive // nil: it is none
}

func evidenceVerifyCommand() *cobra.Command {
	var d dataFlags
	var url, receipt string
	cmd := &cobra.Command{
		Use:   "verify FILE|SESSION",
		Short: "Check that no byte of a session's evidence was changed",
		Long: `Check a manifest and every file it names against their digests. Nothing is asked
of GitHub.

FILE is what inspect evidence export has written, or a manifest whose files lie
beside it under their names or their digests. SESSION is the id of a session, or
the beginning of it; its receipt says what the manifest has to be.

A receipt that lies with the evidence can be changed together with it. --receipt
gives one from elsewhere: the evidence's digest as the check run, the pull request
or the comment prints it (its first 16 digits at least), or a receipt.json. The
last line says what was compared with what. The exit status is 1 if something is not as it should be, and 3 if that cannot be found out.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, closing, err := openEvidence(cmd.Context(), d, url, args[0])
			if err != nil {
				return unread(err)
			}
			defer closing()
			if receipt != "" {
				if err := b.compareWith(receipt); err != nil {
					return err
				}
			}
			return verifyEvidence(cmd.OutOrStdout(), b)
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().StringVar(&url, "evidence-url", "", "where evidence is kept (default: in the data directory)")
	cmd.Flags().StringVar(&receipt, "receipt", "", "a receipt from elsewhere: the digest of the evidence, or a file")
	return withEnvironment(cmd)
}

func verifyEvidence(out io.Writer, b bundle) error {
	var m evidence.Manifest
	var wrong, beside []string
	var err error
	if b.archive != nil {
		m, wrong, beside, err = b.archive.Compare(b.digest)
	} else {
		m, wrong, err = evidence.Verify(b.manifest, b.digest, b.found)
	}
	if err != nil {
		return unread(err)
	}
	for _, w := range wrong {
		fmt.Fprintln(out, w)
	}
	if len(wrong) > 0 {
		return errEvidence
	}
	sum, err := evidence.SumOf(strings.NewReader(string(b.manifest)))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "session %s: %d files are what manifest.json says, and manifest.json is sha256:%s.\n", m.Session, len(m.Files), sum.SHA256)
	switch {
	case len(beside) > 0 && b.archive.Sums == nil:
		fmt.Fprintf(out, "Nothing says what these have to be, as the archive is of an older version: %s.\n", strings.Join(beside, ", "))
	case len(beside) > 0:
		fmt.Fprintf(out, "Only SHA256SUMS in the same archive says what these have to be: %s.\n", strings.Join(beside, ", "))
	}
	switch {
	case b.digest == "":
		fmt.Fprintln(out, "Nothing says that this is the manifest it should be: there is no receipt. Compare the digest with the check run or the comment, or give it with --receipt.")
	case b.outside:
		fmt.Fprintf(out, "That manifest is what %s says: no byte of it or of its files was changed since it was written.\n", b.source)
	default:
		fmt.Fprintf(out, "That manifest is what %s says. Whoever could change the evidence there could change that as well: compare the digest with the check run or the comment, or give it with --receipt.\n", b.source)
	}
	return nil
}

var aDigest = regexp.MustCompile(`^[0-9a-f]{16,64}$`)

// compareWith takes a receipt from elsewhere: a digest, or its beginning, or a file.
func (b *bundle) compareWith(receipt string) error {
	given := strings.TrimSuffix(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(receipt)), "sha256:"), "…")
	source := "the digest that was given"
	if !aDigest.MatchString(given) {
		f, err := os.Open(receipt)
		if err != nil {
			return usagef("--receipt: expected 16 to 64 hexadecimal digits or a file: %w", err)
		}
		defer f.Close()
		var rc scheduler.Receipt
		if err := json.NewDecoder(io.LimitReader(f, 1<<20)).Decode(&rc); err != nil || !aDigest.MatchString(rc.Evidence) {
			return usagef("--receipt: %s is no receipt: it names no evidence", receipt)
		}
		given, source = rc.Evidence, "the receipt in "+receipt
	}
	sum, err := evidence.SumOf(strings.NewReader(string(b.manifest)))
	if err != nil {
		return err
	}
	if b.archive != nil && b.digest != "" && b.digest != sum.SHA256 {
		b.archive.Wrong = append(b.archive.Wrong, evidence.ReceiptName+" was changed: it names another manifest")
	}
	if strings.HasPrefix(sum.SHA256, given) {
		given = sum.SHA256
	}
	b.digest, b.source, b.outside = given, source, true
	return nil
}

var sessionName = regexp.MustCompile(`^[a-z2-7]{1,10}$`)

// openEvidence finds evidence by the name of a file or of a session.
func openEvidence(ctx context.Context, d dataFlags, url, name string) (bundle, func(), error) {
	nothing := func() {}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) && sessionName.MatchString(name) {
		return sessionEvidence(ctx, d, url, name)
	}
	if err != nil {
		return bundle{}, nothing, err
	}
	defer f.Close()
	// An archive begins with a name, a manifest with its brace.
	buffered := bufio.NewReader(f)
	if first, err := buffered.Peek(1); err == nil && first[0] == '{' {
		b, err := besideEvidence(name, buffered)
		return b, nothing, err
	}
	b, err := tarEvidence(buffered)
	if err != nil {
		return b, nothing, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nothing, nil
}

// tarEvidence reads what export has written.
func tarEvidence(r io.Reader) (bundle, error) {
	a, err := evidence.ReadArchive(r)
	if err != nil {
		return bundle{}, err
	}
	b := bundle{manifest: a.Manifest, archive: &a}
	if a.Receipt != nil {
		var rc scheduler.Receipt
		if err := json.Unmarshal(a.Receipt, &rc); err != nil || rc.Evidence == "" {
			a.Wrong = append(a.Wrong, evidence.ReceiptName+" was changed: it is no receipt that can be read")
		}
		b.digest, b.source = rc.Evidence, "the receipt in the same archive"
	}
	return b, nil
}

// besideEvidence reads a manifest whose files lie beside it.
func besideEvidence(name string, from io.Reader) (bundle, error) {
	b := bundle{}
	body, err := io.ReadAll(io.LimitReader(from, evidence.MaxManifest+1))
	if err != nil {
		return b, fmt.Errorf("read %s: %w", name, err)
	}
	if len(body) > evidence.MaxManifest {
		return b, fmt.Errorf("%s is longer than any manifest", name)
	}
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return b, err
	}
	b.manifest = body
	b.found = func(f evidence.File) (evidence.Sum, error) {
		for _, n := range []string{f.Name, f.SHA256} {
			// A pipe would have whoever opens it wait for somebody who writes.
			if info, err := root.Stat(n); err != nil || !info.Mode().IsRegular() {
				continue
			}
			r, err := root.Open(n)
			if err != nil {
				return evidence.Sum{}, err
			}
			defer r.Close()
			return evidence.SumOf(r)
		}
		return evidence.Sum{}, evidence.ErrAbsent
	}
	return b, nil
}

// evidenceStore opens the store of evidence.
func evidenceStore(ctx context.Context, d dataFlags, url string) (*storage.Blobs, error) {
	if url == "" {
		dir, err := filepath.Abs(filepath.Join(d.data, "evidence"))
		if err != nil {
			return nil, usagef("--data: %w", err)
		}
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("there is no evidence in %s (%w): give the --data or the --evidence-url of the server that runs", d.data, err)
		}
		url = fileURL(dir)
	}
	return storage.OpenBlobs(ctx, url)
}

// sessionEvidence reads a session's evidence where it is kept.
func sessionEvidence(ctx context.Context, d dataFlags, url, name string) (bundle, func(), error) {
	nothing := func() {}
	db, err := openDatabase(ctx, d)
	if err != nil {
		return bundle{}, nothing, err
	}
	blobs, err := evidenceStore(ctx, d, url)
	if err != nil {
		db.Close()
		return bundle{}, nothing, err
	}
	closing := func() { blobs.Close(); db.Close() }
	b, _, err := readEvidence(ctx, db, blobs, name)
	if err != nil {
		closing()
		return bundle{}, nothing, err
	}
	return b, closing, nil
}

var errNoEvidence = errors.New("no evidence yet")

func readEvidence(ctx context.Context, db *storage.DB, blobs *storage.Blobs, name string) (bundle, storage.Session, error) {
	var b bundle
	id, err := findSession(ctx, db, name)
	if err != nil {
		return b, storage.Session{}, err
	}
	s, err := db.Q().PublishSession(ctx, id)
	if err != nil {
		return b, s, fmt.Errorf("read session %s: %w", id, err)
	}
	row, err := db.Q().EvidenceFile(ctx, storage.EvidenceFileParams{SessionID: id, Name: publish.FileManifest})
	if storage.IsMissing(err) {
		return b, s, fmt.Errorf("session %s has %w: it is written when the session ends or waits for an approval", id, errNoEvidence)
	}
	if err != nil {
		return b, s, err
	}
	b.digest, b.source = row.Sha256, "the list of its files in the database"
	if s.Receipt.Valid {
		var rc scheduler.Receipt
		if err := json.Unmarshal(s.Receipt.RawMessage, &rc); err != nil {
			return b, s, fmt.Errorf("read the receipt of session %s: %w", id, err)
		}
		b.digest, b.source = rc.Evidence, "its receipt in the database"
	}
	r, err := blobs.Get(ctx, id, b.digest)
	if err != nil {
		return b, s, fmt.Errorf("read the manifest of session %s: %w", id, err)
	}
	defer r.Close()
	if b.manifest, err = readChanged(r, evidence.MaxManifest); err != nil {
		return b, s, fmt.Errorf("read the manifest of session %s: %w", id, err)
	}
	b.found = func(f evidence.File) (evidence.Sum, error) {
		r, err := blobs.Get(ctx, id, f.SHA256)
		if errors.Is(err, storage.ErrBlobMissing) || errors.Is(err, storage.ErrBlobName) {
			return evidence.Sum{}, evidence.ErrAbsent
		}
		if err != nil {
			return evidence.Sum{}, err
		}
		defer r.Close()
		sum, err := evidence.SumOf(r)
		if errors.Is(err, storage.ErrBlobMismatch) {
			err = nil // the sum says so
		}
		return sum, err
	}
	return b, s, nil
}

// readChanged reads what may not be what its name says: that is found later.
func readChanged(r io.Reader, most int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, most))
	if errors.Is(err, storage.ErrBlobMismatch) {
		err = nil
	}
	return body, err
}

func evidenceExportCommand() *cobra.Command {
	var d dataFlags
	var url, output string
	cmd := &cobra.Command{
		Use:   "export SESSION",
		Short: "Write a session's manifest, receipt and files as a tar archive",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return unread(err)
			}
			defer db.Close()
			blobs, err := evidenceStore(cmd.Context(), d, url)
			if err != nil {
				return unread(err)
			}
			defer blobs.Close()
			if output == "" {
				return exportEvidence(cmd.Context(), cmd.OutOrStdout(), db, blobs, args[0])
			}
			f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			return errors.Join(exportEvidence(cmd.Context(), f, db, blobs, args[0]), f.Close())
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().StringVar(&url, "evidence-url", "", "where evidence is kept (default: in the data directory)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "the file to write, which must not exist (default: standard output)")
	return withEnvironment(cmd)
}

func exportEvidence(ctx context.Context, out io.Writer, db *storage.DB, blobs *storage.Blobs, name string) error {
	b, s, err := readEvidence(ctx, db, blobs, name)
	if err != nil {
		return err
	}
	return publish.Export(ctx, out, db.Q(), blobs, s, b.manifest)
}
