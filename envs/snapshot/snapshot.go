// Package snapshot is the contract of the store behind a node: prepared,
// immutable states of environments (snapshots), the writable copies made of
// them (clones), and the root file systems of container images. Names, commits and trees come in from the node daemon; paths
// on the host go out. What stands inside a tree is written by an enemy: an
// implementation never follows a link out of it and never runs anything of it.
//
// Implementations live in the folders below (dir and zfs) and all pass the one
// suite in storetest.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"inspect/envs/wire"
)

// The errors a caller decides on. They are wrapped with words; compare with
// errors.Is.
var (
	// ErrNotFound: the base, snapshot or clone that was named is not there.
	// Discard never returns it: what is gone is discarded.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken by something else than what was asked for.
	// Nothing was changed.
	ErrExists = errors.New("exists already")
	// ErrBusy: something still uses it (a running restore, a process, a mount).
	// Asking again later may succeed.
	ErrBusy = errors.New("busy")
	// ErrNoSpace: the store is out of bytes or inodes, or over its quota.
	ErrNoSpace = errors.New("no space left")
	// ErrForeign: a tree of that name is there, but it does not carry this
	// installation's mark. It is left alone, always.
	ErrForeign = errors.New("belongs to another installation")
	// ErrUnavailable: what the store stands on is away: the pool is not imported
	// or suspended, its daemon does not run. Nothing can be told of what is there.
	ErrUnavailable = errors.New("the store is not available")
	// ErrUnsupported: this store cannot do it. Nothing was changed.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrName: the id cannot be the name of anything.
	ErrName = errors.New("not a valid name")
)

// Ref is one of BaseID, SnapshotID, CloneID and ImageID: what Discard takes.
type Ref interface {
	fmt.Stringer
	// Check returns an error that wraps ErrName if the id cannot be a name.
	Check() error
	isRef()
}

// BaseID names a tree in preparation. The caller chooses it; the node daemon
// uses the id of the snapshot that it is to become.
type BaseID string

// SnapshotID names a snapshot. The control plane chooses it; it is never used
// for a second one.
type SnapshotID string

// ImageID names an image: its sha256 digest in hexadecimal.
type ImageID string

// CloneID names a clone: one attempt of one session, and what the clone is for.
type CloneID struct {
	Session    string
	Generation int
	Purpose    string // wire.PurposeWork, wire.PurposeVerify, or PurposeProof
}

// PurposeProof is the purpose of the one clone a refresh makes to prove its
// snapshot. It belongs to no session.
const PurposeProof = "proof"

func (BaseID) isRef()     {}
func (SnapshotID) isRef() {}
func (CloneID) isRef()    {}
func (ImageID) isRef()    {}

func (b BaseID) String() string     { return string(b) }
func (s SnapshotID) String() string { return string(s) }
func (i ImageID) String() string    { return string(i) }

// String is the clone's name on disk and the id of its sandbox:
// <session>-g<generation>-<purpose>.
func (c CloneID) String() string {
	return c.Session + "-g" + strconv.Itoa(c.Generation) + "-" + c.Purpose
}

var (
	idPattern      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	sessionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	purposePattern = regexp.MustCompile(`^[a-z]{1,16}$`)
	imagePattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Check says whether b can be a name.
func (b BaseID) Check() error { return checkID("base", string(b)) }

// Check says whether s can be a name.
func (s SnapshotID) Check() error { return checkID("snapshot", string(s)) }

// Check says whether i can be a name.
func (i ImageID) Check() error {
	if !imagePattern.MatchString(string(i)) {
		return fmt.Errorf("digest of an image %q: %w", shown(string(i)), ErrName)
	}
	return nil
}

// Check says whether c can be a name.
func (c CloneID) Check() error {
	switch {
	case !sessionPattern.MatchString(c.Session):
		return fmt.Errorf("session id %q: %w", shown(c.Session), ErrName)
	case c.Generation < 0:
		return fmt.Errorf("generation %d: %w", c.Generation, ErrName)
	case !purposePattern.MatchString(c.Purpose):
		return fmt.Errorf("purpose %q: %w", shown(c.Purpose), ErrName)
	}
	return nil
}

// CheckTurn says whether a turn can have that number.
func CheckTurn(turn int) error {
	if turn < 1 {
		return fmt.Errorf("turn %d: %w", turn, ErrName)
	}
	return nil
}

func checkID(kind, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s id %q: %w", kind, shown(id), ErrName)
	}
	return nil
}

// shown keeps an enemy's id from filling a log.
func shown(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// ParseCloneID reads back what CloneID.String wrote.
func ParseCloneID(name string) (CloneID, bool) {
	left, purpose, ok := cutLast(name, "-")
	if !ok {
		return CloneID{}, false
	}
	session, gen, ok := cutLast(left, "-g")
	if !ok {
		return CloneID{}, false
	}
	n, err := strconv.Atoi(gen)
	if err != nil {
		return CloneID{}, false
	}
	c := CloneID{Session: session, Generation: n, Purpose: purpose}
	if c.Check() != nil || c.String() != name {
		return CloneID{}, false
	}
	return c, true
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// CloneOf is the clone id as the protocol has it.
func CloneOf(c Clone) wire.Clone {
	return wire.Clone{Session: c.ID.Session, Generation: c.ID.Generation, Purpose: c.ID.Purpose, Created: c.Created, Bytes: c.Bytes}
}

// Meta is what a snapshot was made of. It is kept with the snapshot.
type Meta struct {
	Environment  string `json:"environment"`
	Generation   int    `json:"generation"`
	Commit       string `json:"commit"`
	ConfigDigest string `json:"config_digest"`
	// Image names the image, if there is one, whose programs go with it.
	Image ImageID `json:"image,omitempty"`
}

// Base is a tree in preparation.
type Base struct {
	ID      BaseID
	Path    string // of the tree on the host; empty at first, unless made from a snapshot
	Created time.Time
}

// Info is a published snapshot.
type Info struct {
	ID      SnapshotID
	Meta    Meta
	Created time.Time
	Bytes   int64 // taken on disk when it was made
	// LeftOut names what no clone will have (at most MaxLeftOut names, then
	// LeftOutCount tells how many there were): FIFOs, sockets, devices.
	LeftOut      []string
	LeftOutCount int
}

// MaxLeftOut bounds Info.LeftOut.
const MaxLeftOut = 20

// Clone is a restored clone.
type Clone struct {
	ID       CloneID
	Path     string // of the tree on the host
	Snapshot SnapshotID
	Commit   string  // of the snapshot
	Image    ImageID // of the snapshot
	Created  time.Time
	Existed  bool  // Restore only: it had been restored before
	Bytes    int64 // List only: that it alone takes of the disk, its turns included; 0: not known
}

// Image is the root file system of a container image.
type Image struct {
	ID      ImageID
	Path    string // of the tree on the host; to be read only
	Created time.Time
	Bytes   int64 // List only: that it takes of the disk; 0: not known
}

// Listing is everything in the store that carries this installation's mark.
type Listing struct {
	Bases     []Base
	Snapshots []Info
	Clones    []Clone
	Images    []Image
	// Foreign names what lies in the store without our mark. It is never
	// touched; people may want to know.
	Foreign []string
}

// Space of the filesystem or pool, in bytes.
type Space struct {
	Total int64
	Free  int64 // what this process may still use
	Room  int64 // what of it may be taken before the store makes nothing new; 0 or less: it makes nothing
}

// Store keeps bases, snapshots, clones and images.
//
// Ownership. A store belongs to one installation (an id given when it is
// opened) and to one process at a time. Every tree carries the installation's
// mark outside the part a sandbox can see. Only trees with the mark are ever
// listed, returned or removed; a tree without it makes the calls that name it
// fail with ErrForeign. The caller owns the tree at Base.Path until Snapshot and
// the tree at Clone.Path until Discard: it may let a sandbox write there. It
// ends every process in a tree before it calls Snapshot, Seal or Discard for it.
//
// Atomicity. A crash at any moment leaves a thing either whole under its name
// or not there at all. What lies half done is cleared by Sweep.
//
// Trees. Regular files, directories and symlinks come back from Restore with
// content, permission bits, modification time and (where the process is
// privileged) owner; hard links within the tree stay linked; holes may stay
// holes. Setuid and setgid bits of files may be dropped. FIFOs, sockets and
// devices are left out and named. A tree nested deeper than MaxDepth is refused.
//
// All methods may be called by many goroutines at once. Two calls for one id
// run one after the other. Ids are checked first (ErrName). A cancelled context
// ends a call with its error and leaves nothing behind under the name.
type Store interface {
	// Name is "dir" or "zfs".
	Name() string

	// Prepare makes a writable base: an empty tree, or a copy of the snapshot
	// from if that is not empty. ErrExists: a base of that name is there; the
	// caller decides whether to discard it. ErrNotFound: no snapshot from.
	Prepare(ctx context.Context, id BaseID, from SnapshotID) (Base, error)

	// Bound has a base take no more than so many bytes of the disk, with a little
	// to spare for what the store needs itself, or what it has already if that is
	// more: whoever writes gets an error then. A store without quotas does nothing.
	// ErrNotFound: no such base.
	Bound(ctx context.Context, base BaseID, bytes int64) error

	// Snapshot publishes the base as an immutable snapshot; the base is gone
	// afterwards. Repeating it after success returns the same Info. ErrExists:
	// the id is a snapshot of another base. ErrNotFound: no such base.
	Snapshot(ctx context.Context, base BaseID, id SnapshotID, m Meta) (Info, error)

	// Restore makes a clone. If it is there already and was made from the same
	// snapshot it is returned as it is, with Existed set; from another snapshot:
	// ErrExists. ErrNotFound: no such snapshot. room is how many bytes the clone
	// may take beside what it shares with the snapshot, 0 is any number; a store
	// without quotas cannot hold it to that, see HardQuota.
	Restore(ctx context.Context, id SnapshotID, clone CloneID, room int64) (Clone, error)

	// HardQuota says whether the room of a clone, and the bound of a base, is
	// enforced by the store.
	HardQuota() bool

	// Forks says whether KeepTurn and Fork are supported.
	Forks() bool

	// KeepTurn keeps the state of a clone as that after a turn (1, 2, …), for
	// Fork. Processes may be at work in it. A turn that is kept already is
	// success and not kept anew. It goes with the clone. ErrNotFound: no such
	// clone. ErrUnsupported: it would mean to copy the whole clone.
	KeepTurn(ctx context.Context, clone CloneID, turn int) error

	// Fork makes a clone of what another was after a turn, like Restore: what was
	// written since the snapshot counts to its room. The other may be discarded
	// afterwards. ErrNotFound: no such clone or turn.
	Fork(ctx context.Context, from CloneID, turn int, clone CloneID, room int64) (Clone, error)

	// Clone returns a clone that was restored. ErrNotFound.
	Clone(ctx context.Context, clone CloneID) (Clone, error)

	// Seal makes the base an image; the base is gone afterwards. Repeating it
	// after success returns the same. ErrExists: the id is an image of another
	// base, and this one stays as it is. After another error the base can only be
	// discarded. ErrNotFound: no such base.
	Seal(ctx context.Context, base BaseID, id ImageID) (Image, error)

	// Image returns an image that was sealed. ErrNotFound.
	Image(ctx context.Context, id ImageID) (Image, error)

	// Discard removes a base, snapshot, clone or image. When it returns nil the name is
	// free. Not found is success. ErrBusy: a restore runs from the snapshot, or
	// something holds the tree; call again later. ErrForeign.
	Discard(ctx context.Context, what Ref) error

	// List lists what is there.
	List(ctx context.Context) (Listing, error)

	// Space tells how much room there is.
	Space(ctx context.Context) (Space, error)

	// Sweep removes what crashes and failed removals left half done. It goes on
	// after an error and returns all of them. Running calls are not disturbed.
	Sweep(ctx context.Context) error

	// Close releases the store for another process. No other call may be running.
	Close() error
}

// MaxDepth is how many directories below each other a tree may have.
const MaxDepth = 512
