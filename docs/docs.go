// Package docs holds the files of this directory that the program itself
// writes somewhere: the systemd unit and the samples of configuration files.
package docs

import "embed"

// Files are systemd/inspect.service, and models.yml.
//
//go:embed systemd/inspect.service models.yml
var Files embed.FS
