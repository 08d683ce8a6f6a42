package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// services names the services that the repository's files speak of and that a
// guessed environment does not have, one sentence for each kind.
func (d *detector) services() (gaps []string) {
	seen := map[string]bool{}
	add := func(file, image string) {
		if kind := kindOf(image); !seen[kind] && image != "" && !slices.Contains(toolImages, kind) && len(gaps) < 6 {
			seen[kind] = true
			gaps = append(gaps, fmt.Sprintf("%s names a service of image %s: declare it under services in %s", show(file), show(image), FileName))
		}
	}
	for _, name := range []string{"docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml", ".devcontainer/docker-compose.yml"} {
		root := d.yaml(name)
		for _, svc := range values(child(root, "services")) {
			if child(svc, "build") == nil { // what is built here is the repository's own
				add(name, scalar(child(svc, "image")))
			}
		}
	}
	workflows := 0
	for _, name := range d.sorted {
		if ext := path.Ext(name); path.Dir(name) != ".github/workflows" || ext != ".yml" && ext != ".yaml" {
			continue
		}
		if workflows++; workflows > 15 {
			break
		}
		for _, job := range values(child(d.yaml(name), "jobs")) {
			for _, svc := range values(child(job, "services")) {
				image := scalar(svc)
				if image == "" {
					image = scalar(child(svc, "image"))
				}
				add(name, image)
			}
		}
	}
	for _, name := range []string{".env.example", ".env.sample", ".env.template", ".env.dist", ".env.test", "env.example"} {
		text, _ := d.text(name)
		for line := range strings.Lines(text) {
			// The value may be a secret and is not repeated.
			key, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
			if !ok || strings.HasPrefix(key, "#") {
				continue
			}
			scheme, _, ok := strings.Cut(strings.Trim(value, `"'`), "://")
			if kind := schemes[scheme]; ok && kind != "" && !seen[kind] && len(gaps) < 6 {
				seen[kind] = true
				gaps = append(gaps, fmt.Sprintf("%s names a %s in %s: declare it under services in %s", name, kind, show(key), FileName))
			}
		}
	}
	return gaps
}

// schemes of addresses and what kind of service answers there.
var schemes = map[string]string{
	"postgres": "postgres", "postgresql": "postgres", "postgis": "postgres", "mysql": "mysql", "mariadb": "mysql",
	"redis": "redis", "rediss": "redis", "valkey": "redis", "amqp": "rabbitmq", "amqps": "rabbitmq", "mongodb": "mongo",
}

// kinds of images that are the same service.
var kinds = map[string]string{
	"postgis": "postgres", "timescaledb": "postgres", "timescaledb-ha": "postgres", "pgvector": "postgres", "postgresql": "postgres",
	"mariadb": "mysql", "valkey": "redis", "redis-stack": "redis", "redis-stack-server": "redis", "mongodb": "mongo",
}

// toolImages are no services: something of the repository's own runs in them.
var toolImages = []string{
	"alpine", "busybox", "debian", "ubuntu", "node", "golang", "python", "rust", "ruby", "php", "openjdk", "eclipse-temurin", "maven", "gradle",
}

// kindOf is what an image is: its last name without registry, tag and digest.
func kindOf(image string) string {
	name, _, _ := strings.Cut(path.Base(image), "@")
	name, _, _ = strings.Cut(name, ":")
	if kind := kinds[name]; kind != "" {
		return kind
	}
	return name
}

// yaml is the root of a file, nil if it is none. Aliases are not resolved, so
// that a small file cannot become a large one.
func (d *detector) yaml(name string) *yaml.Node {
	text, ok := d.text(name)
	if !ok || len(text) > maxYAMLBytes {
		return nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil
	}
	return doc.Content[0]
}

// values are those of a mapping, in the order of the file.
func values(n *yaml.Node) (out []*yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 1; i < len(n.Content) && len(out) < 100; i += 2 {
		out = append(out, n.Content[i])
	}
	return slices.Clip(out)
}

func scalar(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return ""
	}
	return n.Value
}
