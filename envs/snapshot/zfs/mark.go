package zfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"inspect/envs/snapshot"
)

// The properties that a thing of ours carries. All are inherited by what is
// below, so they count only where zfs calls them local.
const (
	propOwner = "io.inspect:owner"
	propAbout = "io.inspect:about" // an about, as JSON
	propState = "io.inspect:state" // stateDiscarded, or not there

	// For people and their scripts; never read.
	propSession    = "io.inspect:session"
	propGeneration = "io.inspect:generation"
	propEnv        = "io.inspect:env"
	propCommit     = "io.inspect:commit"
)

// stateDiscarded marks a tombstone: the id is free, the dataset goes as soon as
// nothing uses it any more.
const stateDiscarded = "discarded"

// read is what is asked of every dataset.
var read = []string{propOwner, propAbout, propState, "referenced"}

// valueBytes is how long a property's value may be: zfsprops(7).
const valueBytes = 8192

// about says what a thing is.
type about struct {
	Created time.Time `json:"created"`

	Base     string        `json:"base,omitempty"`     // the base it is, or was before it became a snapshot
	Snapshot string        `json:"snapshot,omitempty"` // the snapshot it is, or was made from
	Meta     snapshot.Meta `json:"meta,omitzero"`      // of that snapshot

	LeftOut      []string `json:"left_out,omitempty"`
	LeftOutCount int      `json:"left_out_count,omitempty"`

	Clone      string `json:"clone,omitempty"` // the clone it is
	Session    string `json:"session,omitempty"`
	Generation int    `json:"generation,omitempty"`
	Purpose    string `json:"purpose,omitempty"`
	Room       int64  `json:"room,omitempty"`
	Shared     int64  `json:"shared,omitempty"`  // bytes of the snapshot that the session began with, beside which it has the room
	ForkOf     string `json:"fork_of,omitempty"` // the clone it is a fork of
	Turn       int    `json:"turn,omitempty"`    // after this turn of it; of a kept turn: which

	Image string `json:"image,omitempty"` // the image it is, or is about to be
}

// marks are the arguments that give a new thing its marks, in the same step in
// which it is made.
func marks(owner string, a about) ([]string, error) {
	body, err := json.Marshal(a)
	for ; err == nil && len(body) > valueBytes && len(a.LeftOut) > 0; body, err = json.Marshal(a) {
		a.LeftOut = a.LeftOut[:len(a.LeftOut)-1]
	}
	if err != nil {
		return nil, err
	}
	if len(body) > valueBytes {
		return nil, errors.New("the mark is too large: shorten environment, commit or digest")
	}
	argv := []string{"-o", propOwner + "=" + owner, "-o", propAbout + "=" + string(body)}
	for _, p := range []struct{ name, value string }{
		{propSession, a.Session}, {propEnv, a.Meta.Environment}, {propCommit, a.Meta.Commit},
	} {
		if p.value != "" {
			argv = append(argv, "-o", p.name+"="+printable(p.value))
		}
	}
	if a.Session != "" {
		argv = append(argv, "-o", propGeneration+"="+strconv.Itoa(a.Generation))
	}
	return argv, nil
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s[:min(len(s), 1000)])
}

// ours says whether a thing carries this installation's mark itself.
func ours(row map[string]value, owner string) bool {
	return row[propOwner] == value{owner, "local"}
}

// discarded says whether a thing of ours is a tombstone.
func discarded(row map[string]value) bool {
	return row[propState] == value{stateDiscarded, "local"}
}

func aboutOf(row map[string]value) (about, bool) {
	v := row[propAbout]
	var a about
	if v.source != "local" || json.Unmarshal([]byte(v.text), &a) != nil {
		return about{}, false
	}
	return a, true
}

func referenced(row map[string]value) (int64, error) {
	n, err := strconv.ParseInt(row["referenced"].text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("zfs says that %q bytes are referenced", row["referenced"].text)
	}
	return n, nil
}

// The kinds of things, and what they are called below the root.
const (
	kindBase     = "base"
	kindSnapshot = "snapshot"
	kindSession  = "session"
	kindImage    = "image"
	reserve      = "reserve"
)

var kinds = []string{kindBase, kindSnapshot, kindSession, kindImage}

// mounted are the kinds of what is mounted.
var mounted = []string{kindBase, kindSession, kindImage}

// published is the one state of a snapshot's dataset that clones are made of.
const published = "@published"

func turnName(turn int) string { return "@turn-" + strconv.Itoa(turn) }

// idOf is the id in a dataset's name. A tombstone keeps its name, so what takes
// its place has a second part after a colon, which no id has.
func idOf(name string) string {
	id, _, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
	return id
}

// is says whether the marks of a thing fit the place where it stands.
func (a about) is(kind, id string) bool {
	return map[string]string{kindBase: a.Base, kindSnapshot: a.Snapshot, kindSession: a.Clone, kindImage: a.Image}[kind] == id
}

// found is everything below the root, told apart.
type found struct {
	listing    snapshot.Listing
	live       map[string]string // kind/id: name of its dataset
	tombstones []string          // names of datasets, sorted
}

// tellApart says what is what below root.
func tellApart(all rows, root, owner, mounts string) (found, error) {
	f, made := found{live: map[string]string{}}, madeFrom(all)
	for name, row := range all {
		rel, below := strings.CutPrefix(name, root+"/")
		kind, last, two := strings.Cut(rel, "/")
		if !below || strings.ContainsAny(rel, "@#") || strings.Contains(last, "/") {
			continue
		}
		if !two {
			if !slices.Contains(kinds, kind) && !(kind == reserve && ours(row, owner)) {
				f.listing.Foreign = append(f.listing.Foreign, rel)
			}
			continue
		}
		if !ours(row, owner) || !slices.Contains(kinds, kind) {
			f.listing.Foreign = append(f.listing.Foreign, rel)
			continue
		}
		if discarded(row) {
			f.tombstones = append(f.tombstones, name)
			continue
		}
		id, of := idOf(name), row
		if kind == kindSnapshot {
			of = all[name+published]
		}
		a, ok := aboutOf(of)
		if !ok || !ours(of, owner) || !a.is(kind, id) {
			f.listing.Foreign = append(f.listing.Foreign, rel)
			continue
		}
		f.live[kind+"/"+id] = name
		switch kind {
		case kindBase:
			f.listing.Bases = append(f.listing.Bases, a.base(mounts))
		case kindSession:
			c := a.clone(mounts)
			c.Bytes = price(all, made, name, owner)
			f.listing.Clones = append(f.listing.Clones, c)
		case kindImage:
			i := a.image(mounts)
			i.Bytes, _ = strconv.ParseInt(row["used"].text, 10, 64)
			f.listing.Images = append(f.listing.Images, i)
		default:
			info, err := a.info(of)
			if err != nil {
				return found{}, fmt.Errorf("%s: %w", name, err)
			}
			f.listing.Snapshots = append(f.listing.Snapshots, info)
		}
	}
	slices.Sort(f.tombstones)
	slices.Sort(f.listing.Foreign)
	slices.SortFunc(f.listing.Bases, func(a, b snapshot.Base) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortFunc(f.listing.Snapshots, func(a, b snapshot.Info) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortFunc(f.listing.Images, func(a, b snapshot.Image) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortFunc(f.listing.Clones, func(a, b snapshot.Clone) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return f, nil
}

// price is what a clone takes of the disk that would be free without it: also what
// was discarded and stays because nothing but the clone was made from it. It is for
// people; where it cannot be told nothing else is wrong.
func price(all rows, made map[string]int, name, owner string) (bytes int64) {
	for range all { // never longer than that, whatever is read
		used, _ := strconv.ParseInt(all[name]["used"].text, 10, 64)
		bytes += used
		origin, _, ok := strings.Cut(all[name]["origin"].text, "@")
		if !ok || made[origin] != 1 || !ours(all[origin], owner) || !discarded(all[origin]) {
			break
		}
		name = origin
	}
	return bytes
}

// madeFrom is how many were made from each dataset.
func madeFrom(all rows) map[string]int {
	made := map[string]int{}
	for of, row := range all {
		if origin, _, ok := strings.Cut(row["origin"].text, "@"); ok && !strings.Contains(of, "@") {
			made[origin]++
		}
	}
	return made
}

func (a about) base(mounts string) snapshot.Base {
	return snapshot.Base{ID: snapshot.BaseID(a.Base), Path: filepath.Join(mounts, kindBase, a.Base), Created: a.Created}
}

func (a about) image(mounts string) snapshot.Image {
	return snapshot.Image{ID: snapshot.ImageID(a.Image), Path: filepath.Join(mounts, kindImage, a.Image), Created: a.Created}
}

func (a about) clone(mounts string) snapshot.Clone {
	return snapshot.Clone{
		ID:       snapshot.CloneID{Session: a.Session, Generation: a.Generation, Purpose: a.Purpose},
		Path:     filepath.Join(mounts, kindSession, a.Clone),
		Snapshot: snapshot.SnapshotID(a.Snapshot), Commit: a.Meta.Commit, Image: a.Meta.Image, Created: a.Created,
	}
}

func (a about) info(row map[string]value) (snapshot.Info, error) {
	bytes, err := referenced(row)
	return snapshot.Info{
		ID: snapshot.SnapshotID(a.Snapshot), Meta: a.Meta, Created: a.Created, Bytes: bytes,
		LeftOut: a.LeftOut, LeftOutCount: a.LeftOutCount,
	}, err
}
