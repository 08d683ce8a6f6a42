package evidence

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the published schema")

// The published schema is that of the types.
func TestPublishedSchema(t *testing.T) {
	const path = "../../docs/evidence.schema.json"
	want, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not the schema of the manifest (%v): run the test with -update", path, err)
	}
}

func TestSchemaHolds(t *testing.T) {
	m := Manifest{Session: "abcdefghij", Checks: []Check{{Name: "unit", Tests: &Tests{Passed: 1, Failures: []Failure{{Package: "p"}}}, Coverage: &Coverage{Lines: 1}}}}
	body, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, wrong, err := Verify(body, digest, nil); err != nil || len(wrong) > 0 {
		t.Errorf("%v %q", err, wrong)
	}
	for _, bad := range []string{
		strings.Replace(string(body), `"session": "abcdefghij"`, `"session": 7`, 1),
		strings.Replace(string(body), `"session": "abcdefghij"`, `"sessions": "abcdefghij"`, 1),
		strings.Replace(string(body), `"version": 4`, `"version": 5`, 1), "{", "[]", "",
	} {
		if _, wrong, err := Verify([]byte(bad), "", nil); err != nil || len(wrong) == 0 {
			t.Errorf("%.60q passes: %v", bad, err)
		}
	}
}
