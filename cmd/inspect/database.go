package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"inspect/storage"
)

// dataFlags say where the database of an `inspect serve` is.
type dataFlags struct {
	data        string
	postgresURL string
}

func (d *dataFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&d.data, "data", "/var/lib/inspect", "data directory of inspect serve")
	f.StringVar(&d.postgresURL, "postgres-url", "", "database, if it is not the private one in the data directory")
}

// openDatabase connects to the database beside a running `inspect serve`, whose
// schema it leaves as it is.
func openDatabase(ctx context.Context, d dataFlags) (*storage.DB, error) {
	url := d.postgresURL
	if url == "" {
		data, err := filepath.Abs(d.data)
		if err != nil {
			return nil, usagef("--data: %w", err)
		}
		dir := filepath.Join(data, "postgres")
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("there is no database in %s (%w): start `inspect serve --data %s`, or give the --data or the --postgres-url of the one that runs", data, err, data)
		}
		url = storage.PostgresURL(dir)
	}
	db, err := storage.OpenMigrated(ctx, url, nil)
	if err != nil && d.postgresURL == "" {
		return nil, fmt.Errorf("the private database of %s does not answer; it runs while `inspect serve` does; run this as the account that serves, or as root: %w", d.data, err)
	}
	return db, err
}
