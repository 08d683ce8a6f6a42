package web

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"inspect/checks/evidence"
	"inspect/storage"
)

// shotView is a page before, after and where it differs, as people see it.
type shotView struct {
	evidence.Screenshot
	Figures []figureView
	// Failed is why the page could not be shown as was asked.
	Failed           string
	Errors, Requests []string
}

type figureView struct {
	Title, Alt, URL string
	Width, Height   int
}

// shots are the pictures of a session's pages.
func shots(id string, m *evidence.Manifest) (out []shotView) {
	if m == nil {
		return nil
	}
	for _, s := range m.Screenshots {
		v := shotView{Screenshot: s}
		for _, f := range []struct {
			title, alt string
			p          *evidence.Picture
		}{
			{"Before", "as the base shows it", s.Before}, {"After", "as the result shows it", s.After}, {"Difference", "with what differs in red", s.Difference},
		} {
			if f.p != nil && digest.MatchString(f.p.SHA256) {
				v.Figures = append(v.Figures, figureView{f.title, s.Name + " " + f.alt, "/sessions/" + id + "/pictures/" + f.p.SHA256, f.p.Width, f.p.Height})
			}
		}
		for _, c := range m.Checks {
			if c.Name == s.Name && c.Shot != nil {
				v.Errors, v.Requests = c.Shot.Errors, c.Shot.Requests
				if !c.Passed {
					v.Failed = c.Words
				}
			}
		}
		out = append(out, v)
	}
	return out
}

// has says whether a manifest shows a picture of that digest.
func has(m *evidence.Manifest, sum string) bool {
	for _, s := range m.Screenshots {
		for _, p := range []*evidence.Picture{s.Before, s.After, s.Difference} {
			if p != nil && p.SHA256 == sum {
				return true
			}
		}
	}
	return false
}

// picture shows a picture. Those that the manifest names are written by the
// control plane itself; nothing else is shown by the browser in our name.
func (p *pages) picture(w http.ResponseWriter, r *http.Request) {
	id, sum := r.PathValue("id"), r.PathValue("sha256")
	none := func() {
		p.fail(w, http.StatusNotFound, "No such picture", "This session has no picture of that digest.")
	}
	if !sessionID.MatchString(id) || !digest.MatchString(sum) {
		none()
		return
	}
	if _, ok := p.visible(w, r, id); !ok {
		return
	}
	files, err := p.db.Q().WebEvidence(r.Context(), id)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	var size int64 = -1
	for _, f := range files {
		if f.Name != manifestName {
			continue
		}
		m, err := p.manifest(r.Context(), id, f.Sha256)
		if err == nil && has(m, sum) {
			for _, f := range files {
				if f.Sha256 == sum {
					size = f.Bytes
				}
			}
		}
	}
	if size < 0 {
		none()
		return
	}
	content, err := p.blobs.Get(r.Context(), id, sum)
	if errors.Is(err, storage.ErrBlobMissing) {
		none()
		return
	}
	if err != nil {
		p.broken(w, r, err)
		return
	}
	defer content.Close()
	h := w.Header()
	h.Set("Content-Type", "image/png")
	h.Set("Content-Disposition", "inline")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	if r.Method == http.MethodHead {
		return
	}
	if n, err := io.Copy(w, content); err != nil || n != size {
		p.log.WarnContext(r.Context(), "a picture could not be sent whole", "session", id, "sha256", sum, "error", err)
		panic(http.ErrAbortHandler)
	}
}
