package gateway

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{`{}`, `{}`},
		{` { "b" : 1 , "a" : [ true , false , null , -0.5e+10 , "x" ] } `, `{"b":1,"a":[true,false,null,-0.5e+10,"x"]}`},
		{`{"a":"\u0041\n\"\\\/\u00e9\ud83d\ude00"}`, `{"a":"A\n\"\\/é😀"}`},
		{`{"a":"\ud83d"}`, `{"a":"` + "\uFFFD" + `"}`},
		{`{"a":"\ud83dx\ude00"}`, `{"a":"` + "\uFFFDx\uFFFD" + `"}`},
		{`{"a":"\ud83d\ud83d\ude00"}`, `{"a":"` + "\uFFFD😀" + `"}`},
		{`{"a":"<&>\u2028\u0000"}`, `{"a":"<&>` + "\u2028" + `\u0000"}`},
		{`{"n":12345678901234567890123}`, `{"n":12345678901234567890123}`},
	} {
		o, err := decode(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if got := string(encode(nil, o)); got != c.out {
			t.Errorf("%s became %s, want %s", c.in, got, c.out)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	many := strings.Repeat(`"k":1,`, 2)
	for _, c := range []struct{ in, want string }{
		{``, "empty"},
		{`[]`, "not a JSON object"},
		{"\xef\xbb\xbf{}", "not a JSON object"},
		{`{"a":1}x`, "behind"},
		{`{"a":1}{"a":2}`, "behind"},
		{`{"model":"a","model":"b"}`, `"model" stands twice`},
		{`{"model":"a","mod\u0065l":"b"}`, `"model" stands twice`},
		{`{"x":{` + many + `"z":0}}`, "stands twice"},
		{"{\"a\":\"\xff\"}", "UTF-8"},
		{"{\"a\":\"\xed\xa0\x80\"}", "UTF-8"},
		{"{\"a\":\"\n\"}", "control character"},
		{`{"a":01}`, "expected"},
		{`{"a":1.}`, "digit"},
		{`{"a":.5}`, "expected a value"},
		{`{"a":+1}`, "expected a value"},
		{`{"a":NaN}`, "expected a value"},
		{`{"a":tru}`, "expected a value"},
		{`{"a":1e}`, "digit"},
		{`{"a":1,}`, "expected a key"},
		{`{'a':1}`, "expected a key"},
		{`{a:1}`, "expected a key"},
		{`{"a":[1,]}`, "expected a value"},
		{`{"a":"\x"}`, "escape"},
		{`{"a":"\u12"}`, "hexadecimal"},
		{`{"a":"\`, "escape"},
		{`{"a":"x`, "ends"},
		{`{"a":`, "ends"},
		{`{"a":1 /* */}`, "expected ',' or '}'"},
		{`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, "levels"},
		{`{"a":[` + strings.Repeat("0,", maxValues) + `0]}`, "values"},
		{`{"a":1` + strings.Repeat("0", 100) + `}`, "letters"},
	} {
		if _, err := decode(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: got %v, want something about %q", c.in, err, c.want)
		}
	}
	large := "{"
	for i := range 100 {
		large += `"k` + strings.Repeat("x", i) + `":1,`
	}
	if _, err := decode(large + `"kx":2}`); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("in a large object: %v", err)
	}
}

// What we take, another reader takes too and reads the same, from what came and
// from what is sent on.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"\ud83d\ude00\ud83d",null,{"b":{}}]}`, `{"a":"\u0000\\"}`, `{"":0}`, `{"a":-0}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := decode(string(in))
		if err != nil {
			return
		}
		out := encode(nil, o)
		want, got := reading2(t, in), reading2(t, out)
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("%q reads as %v, what is sent on, %q, as %v", in, want, out, got)
		}
		again, err := decode(string(out))
		if err != nil || !bytes.Equal(encode(nil, again), out) {
			t.Fatalf("%q is not stable: %v", out, err)
		}
	})
}

// reading2 reads JSON with another reader than ours.
func reading2(t *testing.T, b []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("another reader does not take %q: %v", b, err)
	}
	return v
}
