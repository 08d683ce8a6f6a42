package storage_test

import (
	"strings"
	"testing"
	"time"

	"inspect/storage"
	"inspect/storage/storagetest"
)

// What is asked again and again of a table that only grows has an index there.
func TestTablesThatOnlyGrow(t *testing.T) {
	conn, err := storagetest.New(t).SQL().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "SET enable_seqscan = off; SET enable_bitmapscan = off"); err != nil { // the tables are empty
		t.Fatal(err)
	}
	for index, q := range map[string]struct {
		query string
		args  []any
	}{
		"deliveries_pushes": {storage.PushTold, []any{1, time.Now()}},
		"sessions_newest":   {storage.WebSessions, []any{time.Now(), "", "", "", "", 50}},
	} {
		rows, err := conn.QueryContext(t.Context(), "EXPLAIN "+q.query, q.args...)
		if err != nil {
			t.Fatal(err)
		}
		var plan strings.Builder
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			plan.WriteString(line + "\n")
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(plan.String(), index) {
			t.Errorf("%s is not used:\n%s", index, plan.String())
		}
	}
}
