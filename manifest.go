// Package inspect holds the GitHub App's manifest, the one file that says which
// permissions and events Inspect needs. Package app/manifest reads it.
package inspect

import _ "embed"

// Manifest is app.yml.
//
//go:embed app.yml
var Manifest []byte
