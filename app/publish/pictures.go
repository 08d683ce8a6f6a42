package publish

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"

	"inspect/checks/evidence"
	"inspect/checks/picture"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// keepPictures puts the pictures of pages into the evidence: those of the base and
// of the result, written anew, and where they differ. What the runner uploaded is
// never shown.
func (p *Publisher) keepPictures(ctx context.Context, j *job, m *evidence.Manifest, add func(string, string, int64) error) error {
	for i, v := range j.outcome.Results {
		if v.Report != spec.ReportScreenshot {
			continue
		}
		if i == spec.MaxScreenshots+50 { // more commands than a file can have
			break
		}
		one, err := p.screenshot(ctx, j, v, add)
		if err != nil {
			return err
		}
		if one, err = redacted(j, one); err != nil {
			return err
		}
		m.Screenshots = append(m.Screenshots, one)
	}
	return nil
}

// screenshot keeps one page. Pictures are large: of all sessions, those of one
// page are unpacked at a time.
func (p *Publisher) screenshot(ctx context.Context, j *job, v wire.VerifyResult, add func(string, string, int64) error) (evidence.Screenshot, error) {
	select {
	case p.unpacking <- struct{}{}:
		defer func() { <-p.unpacking }()
	case <-ctx.Done():
		return evidence.Screenshot{}, ctx.Err()
	}
	out := evidence.Screenshot{Name: v.Name}
	for _, w := range j.spec.Verify {
		if w.Name == v.Name && w.Screenshot != nil {
			out.URL = w.Screenshot.URL
		}
	}
	after, why, err := p.readPicture(ctx, j, v)
	if err != nil {
		return out, err
	}
	out.Words = missing("of the result", why)
	var before *image.RGBA
	why = "verification did not run there"
	if j.outcome.Base != nil {
		for _, b := range j.outcome.Base.Results {
			if b.Name == v.Name {
				if before, why, err = p.readPicture(ctx, j, b); err != nil {
					return out, err
				}
			}
		}
	}
	out.Words += missing("of the base", why)
	name := "screenshot-" + fileName(v.Name)
	if out.Before, err = p.putPicture(ctx, j, name+"-before.png", before, add); err != nil {
		return out, err
	}
	if out.After, err = p.putPicture(ctx, j, name+"-after.png", after, add); err != nil {
		return out, err
	}
	if before == nil || after == nil {
		return out, nil
	}
	var drawn *image.RGBA
	switch drawn, out.Changed, out.Pixels = picture.Difference(before, after); {
	case drawn == nil:
		out.Words += "The two pictures are of such different sizes that they cannot be compared. "
	case out.Changed > 0:
		out.Difference, err = p.putPicture(ctx, j, name+"-difference.png", drawn, add)
	}
	return out, err
}

func missing(of, why string) string {
	if why == "" {
		return ""
	}
	return "No picture " + of + ": " + sentence(why) + " "
}

// readPicture reads the picture of a result; why says why there is none. An error
// is ours.
func (p *Publisher) readPicture(ctx context.Context, j *job, v wire.VerifyResult) (img *image.RGBA, why string, err error) {
	sum, why := evidence.PictureOf(v)
	if sum == "" {
		return nil, why, nil
	}
	f, err := p.blobs.Get(ctx, j.session.ID, sum)
	if errors.Is(err, storage.ErrBlobMissing) || errors.Is(err, storage.ErrBlobName) {
		return nil, "it was not uploaded", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the picture of %s: %w", v.Name, err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, wire.MaxShotBytes+1))
	if err != nil {
		return nil, "", fmt.Errorf("read the picture of %s: %w", v.Name, err)
	}
	if img, err = picture.Read(body); err != nil {
		return nil, err.Error(), nil
	}
	return img, "", nil
}

// putPicture stores a picture as a PNG of ours.
func (p *Publisher) putPicture(ctx context.Context, j *job, name string, img *image.RGBA, add func(string, string, int64) error) (*evidence.Picture, error) {
	if img == nil {
		return nil, nil
	}
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pw.CloseWithError(picture.Write(pw, img))
	}()
	sum, n, err := p.blobs.Put(ctx, j.session.ID, pr, maxEvidenceFile)
	pr.CloseWithError(io.ErrClosedPipe) // the writer ends even if the store gave up
	<-done
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, err)
	}
	return &evidence.Picture{SHA256: sum, Width: img.Rect.Dx(), Height: img.Rect.Dy()}, add(name, sum, n)
}
