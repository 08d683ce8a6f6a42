package egress

import (
	"maps"
	"slices"
)

// ecosystems are names for the official public hosts of a package registry and
// what its programs are sent on to when they download: the hosts a restore
// needs, not those one publishes to. Looked through on 2026-12-01; a source is
// named with each. Ports are 443 and 80 as for every entry: the repositories of
// the distributions are plain HTTP, signed by other means.
//
// Left out on purpose is what holds anybody's data under one name, because who
// may read there may also carry data away: storage.googleapis.com (some large
// module zips of proxy.golang.org and archives of pub.dev are redirected to
// it), github.com and api.github.com (archives of packagist, distributions of
// Gradle, crates and modules fetched by git). Who needs one names it.
var ecosystems = map[string][]string{
	// https://go.dev/ref/mod#environment-variables: GOPROXY and GOSUMDB
	"go": {"proxy.golang.org", "sum.golang.org"},
	// https://docs.npmjs.com/cli/using-npm/registry; yarn's name for the same
	// registry; node-gyp's headers: https://github.com/nodejs/node-gyp#environment-variables
	"npm": {"registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org"},
	// https://docs.pypi.org/api/index-api/ and the host its files are on
	"pypi": {"pypi.org", "files.pythonhosted.org"},
	// https://index.crates.io/config.json and its download host
	"crates": {"index.crates.io", "static.crates.io", "crates.io"},
	// https://www.debian.org/mirror/list and https://www.debian.org/security/
	"debian": {"deb.debian.org", "security.debian.org"},
	// https://ubuntu.com/server/docs/package-management: archive, its country
	// names, security, and the other architectures
	"ubuntu": {"archive.ubuntu.com", "*.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"},
	// https://wiki.alpinelinux.org/wiki/Repositories
	"alpine": {"dl-cdn.alpinelinux.org"},
	// https://guides.rubygems.org/rubygems-org-compact-index-api/
	"rubygems": {"rubygems.org", "index.rubygems.org"},
	// https://maven.apache.org/repository/
	"maven": {"repo.maven.apache.org", "repo1.maven.org"},
	// https://docs.gradle.org/current/userguide/plugins.html: the portal, the
	// host its artifacts are on, the wrapper's distributions; most builds need
	// maven beside it
	"gradle": {"plugins.gradle.org", "plugins-artifacts.gradle.org", "services.gradle.org", "downloads.gradle.org"},
	// https://learn.microsoft.com/nuget/api/overview and its content network
	"nuget": {"api.nuget.org", "www.nuget.org", "globalcdn.nuget.org"},
	// https://packagist.org/apidoc: metadata only, the archives are on GitHub
	"packagist": {"repo.packagist.org", "packagist.org"},
	// https://hex.pm/docs/mirrors and Hex's own installer
	"hex": {"repo.hex.pm", "hex.pm", "builds.hex.pm"},
	// https://dart.dev/tools/pub/environment-variables
	"pub": {"pub.dev", "pub.dartlang.org"},
	// https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/channels.html
	"conda": {"conda.anaconda.org", "repo.anaconda.com"},
}

// Hosts are the hosts an ecosystem's name stands for, in the form of entries of
// an allow-list. False: the entry is no such name.
func Hosts(entry string) ([]string, bool) {
	hosts, ok := ecosystems[entry]
	return slices.Clone(hosts), ok
}

// Ecosystems are the names that Hosts knows, sorted.
func Ecosystems() []string { return slices.Sorted(maps.Keys(ecosystems)) }
