package spec

import (
	"maps"
	"slices"
)

// SecretNames are the names of all secrets that the environment names, each
// once, sorted.
func (s Spec) SecretNames() []string {
	names := s.workNames()
	for _, step := range s.Data.Load {
		add(names, step.Secrets...)
	}
	return slices.Sorted(maps.Keys(names))
}

// WorkSecretNames are those that are needed after the snapshot was prepared,
// for the agent's work and for verification; setup runs again where
// dependencies have changed since.
func (s Spec) WorkSecretNames() []string { return slices.Sorted(maps.Keys(s.workNames())) }

// WithSecrets is how many commands of the agent's work and of verification are
// given secrets: each needs a sandbox of its own beside the others. (The proxy's,
// Inject, need none.)
func (s Spec) WithSecrets() (n int) {
	for _, v := range s.Setup {
		n += min(len(v.Secrets), 1)
	}
	for _, v := range s.Services {
		n += min(len(v.Secrets), 1)
	}
	for _, v := range s.Verify {
		n += min(len(v.Secrets), 1)
	}
	return n
}

// WithoutSecrets is s for work on what somebody from outside proposes: nothing
// of it is given a secret and the proxy adds no credential.
func (s Spec) WithoutSecrets() Spec {
	steps := func(in []Step) []Step {
		out := slices.Clone(in)
		for i := range out {
			out[i].Secrets = nil
		}
		return out
	}
	s.Setup, s.Data.Load, s.Inject = steps(s.Setup), steps(s.Data.Load), nil
	s.Services, s.Verify = slices.Clone(s.Services), slices.Clone(s.Verify)
	for i := range s.Services {
		s.Services[i].Secrets = nil
	}
	for i := range s.Verify {
		s.Verify[i].Secrets = nil
	}
	return s
}

func (s Spec) workNames() map[string]bool {
	names := map[string]bool{}
	for _, step := range s.Setup {
		add(names, step.Secrets...)
	}
	for _, v := range s.Services {
		add(names, v.Secrets...)
	}
	for _, v := range s.Verify {
		add(names, v.Secrets...)
	}
	for _, i := range s.Inject {
		add(names, i.Secret)
	}
	return names
}

func add(set map[string]bool, names ...string) {
	for _, n := range names {
		set[n] = true
	}
}
