package main

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// compiled is what compileFilter says, set by the build.
var compiled string

// gVisor has a place for compiled filters, which its own build fills by writing
// source. Go's build does not know that step.
//
//go:linkname programs gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var programs map[string]precompiledseccomp.Program

//go:linkname rules gvisor.dev/gvisor/runsc/boot/filter/config.rules
func rules(config.Options, precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

// compileFilter compiles the filter of gVisor's kernel for the options that
// Inspect's sandboxes have. With other ones gVisor does not use it: they are its name.
func compileFilter() (string, error) {
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		return "", err
	}
	opt := config.Options{Platform: systrap.PrecompiledSeccompInfo()[0], HostFilesystem: true}
	program, err := precompiledseccomp.Precompile(opt.ConfigKey(), slices.Collect(maps.Keys(opt.Vars())),
		func(vars precompiledseccomp.Values) *seccomp.Program {
			allow, deny := rules(opt, vars)
			return &seccomp.Program{
				RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: allow.Copy(), Action: seccomp.Allow}},
				Options:  config.SeccompOptions(opt),
			}
		})
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(program)
	return base64.StdEncoding.EncodeToString(b), err
}

// useFilter hands gVisor the compiled filter, if the build has set one.
func useFilter() {
	var program precompiledseccomp.Program
	if b, err := base64.StdEncoding.DecodeString(compiled); err != nil || json.Unmarshal(b, &program) != nil {
		return
	}
	filter.GetPrecompiled(program.Name) // its own, of which there are none, are there now
	programs[program.Name] = program
}
