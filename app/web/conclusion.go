package web

import (
	"inspect/checks/render"
	"inspect/scheduler"
)

// conclusion is that of the check run; empty while the session goes on.
func (f *facts) conclusion() string {
	if f.row.State == scheduler.Delivered && f.manifest != nil {
		return render.Conclusion(*f.manifest, f.spec.Checks.Required)
	}
	return render.Ask(render.StateOf(string(f.row.State)).Conclusion, f.spec.Checks.Required)
}
