package pull

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Credentials are what a file in the form of docker's config.json has, by
// registry or by registry/repository.
type Credentials struct {
	auths   map[string]authn.AuthConfig
	helpers map[string]bool
}

// ParseCredentials reads such a file. Programs that keep credentials elsewhere
// are not run.
func ParseCredentials(b []byte) (Credentials, error) {
	var file struct {
		Auths       map[string]authn.AuthConfig `json:"auths"`
		CredHelpers map[string]string           `json:"credHelpers"`
	}
	c := Credentials{map[string]authn.AuthConfig{}, map[string]bool{}}
	if err := json.Unmarshal(b, &file); err != nil {
		return c, errors.New(`it is not of the form {"auths": {"registry.example": {"username": "…", "password": "…"}}}, as docker's config.json is`)
	}
	for at, auth := range file.Auths {
		if auth == (authn.AuthConfig{}) {
			c.helpers[place(at)] = true
		} else {
			c.auths[place(at)] = auth
		}
	}
	for at := range file.CredHelpers {
		c.helpers[place(at)] = true
	}
	return c, nil
}

// place is a key of the file as images are named: docker writes addresses.
func place(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(key, "/"), "/v1"), "/v2")
	host, rest, _ := strings.Cut(key, "/")
	if host == "docker.io" || host == "registry-1.docker.io" {
		host = name.DefaultRegistry
	}
	return strings.TrimSuffix(host+"/"+rest, "/")
}

// For is the credential for an image: the one whose key is longest. nil: there
// is none.
func (c Credentials) For(image string) (*authn.AuthConfig, error) {
	ref, err := Reference(image)
	if err != nil {
		return nil, err
	}
	for at := ref.Context().Name(); ; {
		if auth, ok := c.auths[at]; ok {
			return &auth, nil
		}
		if c.helpers[at] {
			return nil, fmt.Errorf("the credential for %s is kept by a helper program, which is not run: write it into the file itself", at)
		}
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			return nil, nil
		}
		at = at[:i]
	}
}

// Values are all that is secret in a credential.
func Values(a authn.AuthConfig) (out []string) {
	for _, v := range []string{a.Password, a.Auth, a.IdentityToken, a.RegistryToken} {
		if v != "" {
			out = append(out, v)
		}
	}
	return out
}
