package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// compiled is what compileFilters says, set by the build.
var compiled string

// filters are those of gVisor's kernel and of its gofer.
type filters struct{ Kernel, Gofer precompiledseccomp.Program }

// gVisor has places for compiled filters, which its own build fills by writing
// source. Go's build does not know that step.
//
//go:linkname kernelPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var kernelPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

//go:linkname rules gvisor.dev/gvisor/runsc/boot/filter/config.rules
func rules(config.Options, precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

// compileFilters compiles the filters for the options that Inspect's sandboxes
// have. With other ones gVisor does not use them: they are their names.
func compileFilters() (string, error) {
	kernel, err := compileKernel()
	if err != nil {
		return "", err
	}
	all, err := goferconfig.PrecompiledPrograms()
	if err != nil {
		return "", err
	}
	name := goferconfig.Options{UDSOpenEnabled: true, DirectFS: true}.ConfigKey()
	at := slices.IndexFunc(all, func(p precompiledseccomp.Program) bool { return p.Name == name })
	if at < 0 {
		return "", fmt.Errorf("gVisor has no filter of the gofer's for %s", name)
	}
	b, err := json.Marshal(filters{Kernel: kernel, Gofer: all[at]})
	return base64.StdEncoding.EncodeToString(b), err
}

func compileKernel() (p precompiledseccomp.Program, err error) {
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		return p, err
	}
	opt := config.Options{Platform: systrap.PrecompiledSeccompInfo()[0], HostFilesystem: true}
	return precompiledseccomp.Precompile(opt.ConfigKey(), slices.Collect(maps.Keys(opt.Vars())),
		func(vars precompiledseccomp.Values) *seccomp.Program {
			allow, deny := rules(opt, vars)
			return &seccomp.Program{
				RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: allow.Copy(), Action: seccomp.Allow}},
				Options:  config.SeccompOptions(opt),
			}
		})
}

// useFilters hands gVisor the compiled filters, if the build has set them.
func useFilters() {
	var f filters
	if b, err := base64.StdEncoding.DecodeString(compiled); err != nil || json.Unmarshal(b, &f) != nil {
		return
	}
	// Its own, of which there are none, are there when it has looked for one.
	filter.GetPrecompiled(f.Kernel.Name)
	kernelPrograms[f.Kernel.Name] = f.Kernel
	gofer.GetPrecompiled(f.Gofer.Name)
	goferPrograms[f.Gofer.Name] = f.Gofer
}
