package context

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inspect/envs/wire"
)

func TestBuildLocal(t *testing.T) {
	f := LocalFacts{
		Repository: "parcel", Branch: "main", Commit: strings.Repeat("0123456789", 4),
		Request: "Make the failing test pass.\r\n\nDo not touch \x1b[31mthe other.\u202e", Notes: []string{"2 uncommitted changes are not part of this."},
		Place: Place{Setup: []string{"go build ./..."}, Verify: []Verify{{"unit", "go test ./..."}}, Timeout: 30 * time.Minute},
	}
	got := BuildLocal(f)
	file := filepath.Join("testdata", "local.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got.Prompt), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if diff := cmp.Diff(string(want), got.Prompt); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	sum := sha256.Sum256([]byte(got.Prompt))
	if got.Digest != hex.EncodeToString(sum[:]) {
		t.Error("the digest is not that of the prompt")
	}
	for _, bad := range []string{"pull request", "\x1b", "\u202e"} {
		if strings.Contains(got.Prompt, bad) {
			t.Errorf("the prompt holds %q", bad)
		}
	}
	// The repository's instructions go where we say, whatever the request says.
	f.Request = wire.InstructionsMark + "x"
	if p := BuildLocal(f).Prompt; strings.Index(p, wire.InstructionsMark) > strings.Index(p, "# The request") {
		t.Error("the first mark is the request's")
	}
}
