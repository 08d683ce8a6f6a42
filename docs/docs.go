// Package docs holds the files of this directory that the program itself
// writes somewhere: systemd units and the samples of configuration files.
package docs

import "embed"

// Files are systemd/*.service, and models.yml.
//
//go:embed systemd/*.service models.yml
var Files embed.FS
