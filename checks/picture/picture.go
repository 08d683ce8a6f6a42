// Package picture reads pictures that an enemy has made, compares two and writes
// them anew, so that what people are shown is a PNG of ours and nothing else.
// Bytes come in and bytes go out; size and kind are looked at before anything is
// unpacked.
package picture

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"

	"inspect/envs/wire"
)

// Read reads a PNG as Chromium writes it. The error is a clause for people.
func Read(body []byte) (*image.RGBA, error) {
	if len(body) > wire.MaxShotBytes {
		return nil, fmt.Errorf("it is longer than %d MiB", wire.MaxShotBytes>>20)
	}
	c, err := png.DecodeConfig(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("it is no PNG: %w", err)
	}
	switch {
	case c.ColorModel != color.RGBAModel && c.ColorModel != color.NRGBAModel:
		return nil, fmt.Errorf("it has other colours than a browser's pictures have")
	case c.Width < 1 || c.Height < 1 || c.Width > wire.MaxShotWidth || c.Height > wire.MaxShotHeight || c.Width*c.Height > wire.MaxShotPixels:
		return nil, fmt.Errorf("it has %d x %d pixels, more than are looked at", c.Width, c.Height)
	}
	img, err := png.Decode(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("it is a damaged PNG: %w", err)
	}
	if opaque, ok := img.(*image.RGBA); ok && opaque.Opaque() {
		return opaque, nil
	}
	out := image.NewRGBA(image.Rect(0, 0, c.Width, c.Height))
	draw.Draw(out, out.Rect, image.White, image.Point{}, draw.Src)
	draw.Draw(out, out.Rect, img, img.Bounds().Min, draw.Over)
	return out, nil
}

// tolerance is how much a colour may differ and count as the same, of 255.
const tolerance = 8

// Difference counts the pixels that differ in two pictures, of all that one of
// them has, and draws them red over a faded copy of the second. nil: a picture
// that holds both would be larger than any that is read, as of a very wide and a
// very high one; pictures of one window are as wide as another.
func Difference(before, after *image.RGBA) (drawn *image.RGBA, changed, total int) {
	r := before.Rect.Union(after.Rect)
	if r.Dx()*r.Dy() > wire.MaxShotPixels {
		return nil, 0, 0
	}
	drawn = image.NewRGBA(r)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			at := drawn.Pix[drawn.PixOffset(x, y):]
			p := image.Pt(x, y)
			if p.In(before.Rect) && p.In(after.Rect) {
				a, b := before.Pix[before.PixOffset(x, y):], after.Pix[after.PixOffset(x, y):]
				if near(a[0], b[0]) && near(a[1], b[1]) && near(a[2], b[2]) {
					grey := uint8(191 + (int(b[0])+2*int(b[1])+int(b[2]))/16)
					at[0], at[1], at[2], at[3] = grey, grey, grey, 255
					continue
				}
			}
			changed++
			at[0], at[1], at[2], at[3] = 0xcf, 0x11, 0x2c, 255
		}
	}
	return drawn, changed, r.Dx() * r.Dy()
}

func near(a, b uint8) bool { return max(a, b)-min(a, b) <= tolerance }

// Write is the PNG of a picture.
func Write(to io.Writer, img *image.RGBA) error { return png.Encode(to, img) }
