package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// What is hashed can never change: chains of years ago are checked by it.
func TestHashedForm(t *testing.T) {
	n := int64(7)
	e := Event{Session: "abcdefghij", Seq: 2, Generation: 3, Number: &n, Kind: "note", At: time.Date(2026, 3, 1, 12, 0, 0, 1999, time.FixedZone("", 3600))}
	var err error
	if e.Data, err = Canonical([]byte(`{"words": "<é>", "b": {"z": 1, "a": [1.50, -0, 1e2, null]}}`)); err != nil {
		t.Fatal(err)
	}
	if err := e.Seal([]byte("prev")); err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256([]byte(`prev["abcdefghij",2,3,7,"note",1772362800000001,{"b":{"a":[1.5,0,100,null],"z":1},"words":"\u003cé\u003e"}]`))
	if !bytes.Equal(e.Hash, want[:]) {
		t.Errorf("data %s, hash %x", e.Data, e.Hash)
	}
	e.Number, e.Seq = nil, 1
	want = sha256.Sum256([]byte(`["abcdefghij",1,3,null,"note",1772362800000001,{}]`))
	if e.Data = json.RawMessage(`{}`); e.Seal(nil) != nil || !bytes.Equal(e.Hash, want[:]) {
		t.Errorf("hash %x", e.Hash)
	}
}

func TestCanonicalNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"1": "1", "-0": "0", "-0.0": "0", "0.0": "0", "1.0": "1", "1e2": "100", "9007199254740993": "9007199254740993", "-9223372036854775808": "-9223372036854775808",
		"1e21": "1e+21", "1000000000000000000000": "1e+21", "0.1": "0.1", "1e-7": "1e-7",
		`"a\u0000b"`: `"a` + "\uFFFD" + `b"`, `{"b":1,"a":2}`: `{"a":2,"b":1}`,
	} {
		got, err := Canonical([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
		again, exact, err := canonical(got, asIs)
		if err != nil || !exact || !bytes.Equal(again, got) {
			t.Errorf("%s is not its own canonical form: %s, %v, %v", got, again, exact, err)
		}
	}
	for _, in := range []string{"", "1 2", "1e400", `{"a\u0000":1,"a\ufffd":2}`, strings.Repeat("[", 20) + strings.Repeat("]", 20)} {
		if got, err := Canonical([]byte(in)); err == nil {
			t.Errorf("%q: %s", in, got)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add([]byte(`{"a":[1.0,-0,1e300,"\u0000"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := Canonical(raw)
		if err != nil {
			return
		}
		if again, exact, err := canonical(got, asIs); err != nil || !exact || !bytes.Equal(again, got) {
			t.Errorf("%q → %q → %q, %v, %v", raw, got, again, exact, err)
		}
	})
}

func TestReadAnchors(t *testing.T) {
	head := strings.Repeat("ab", 32)
	got, err := ReadAnchors(strings.NewReader(`{"session":7,"events":"none"} {"session":"a","events_count":3,"events_head":"`+head+`"} {"session":"b","events":{"count":4,"head":"`+head+`"}}`), "f")
	if err != nil || len(got) != 2 || got[0].Session != "a" || got[0].Count != 3 || got[1].Session != "b" || got[1].Count != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, in := range []string{``, `[]`, `no JSON`, `{"events_head":"AB"}`, `{"events_head":"` + head + `"}`, `{"events_count":-1,"events_head":"` + head + `"}`} {
		if got, err := ReadAnchors(strings.NewReader(in), "f"); err == nil {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

// chain is a source of n events made as they are asked for, and its end.
func chain(n int64) (Record, Source) {
	each := func(yield func(Event) error) (head []byte, err error) {
		for i := int64(1); i <= n; i++ {
			e := Event{Session: "abcdefghij", Seq: i, Kind: "tool", At: time.UnixMicro(i), Data: json.RawMessage(`{"command":"go test ./...","exit_code":0}`)}
			if err := e.Seal(head); err != nil {
				return nil, err
			}
			head = e.Hash
			if err := yield(e); err != nil {
				return head, err
			}
		}
		return head, nil
	}
	head, _ := each(func(Event) error { return nil })
	return Record{Session: "abcdefghij", State: firstState, Count: n, Head: head}, func(yield func(Event) error) error {
		_, err := each(yield)
		return err
	}
}

func TestErrorsOfTheSourceAreNotBreaks(t *testing.T) {
	r, _ := chain(3)
	away := errors.New("the database is away")
	if _, err := Check(r, nil, func(func(Event) error) error { return away }); !errors.Is(err, away) || errors.Is(err, ErrBroken) {
		t.Errorf("got %v", err)
	}
}

// 200,000 events are what a session may have.
func BenchmarkCheck(b *testing.B) {
	r, events := chain(200_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Check(r, nil, events); err != nil {
			b.Fatal(err)
		}
	}
}
