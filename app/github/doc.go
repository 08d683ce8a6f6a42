// Package github is the only code that talks to GitHub. In come numeric ids,
// names and finished texts from the other rooms of app; out go typed answers,
// typed errors, and requests that have passed one gate:
//
//   - an allow-list of methods, paths and body fields (routes.go): merging,
//     approving, protecting, administering and deleting branches are refused
//     before anything is sent, whatever code asks for them;
//   - the funnel (funnel.go): secrets replaced, byte limits kept;
//   - pacing (pace.go): one budget for each installation, writes one after
//     another, silence while GitHub asks for it;
//   - tokens (tokens.go) for one repository and the least permissions, never
//     sent to another host.
//
// Reads are repeated when GitHub is unwell. Writes never are: a write whose
// answer was lost is ErrAmbiguous, and the caller looks for its effect first.
package github
