package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"

	"inspect/envs/wire"
)

func flat(w, h int, c color.Color) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.Set(x, y, c)
		}
	}
	return img
}

func encoded(t *testing.T, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// head is the beginning of a PNG that says it is of a size.
func head(w, h uint32, depth, kind byte) []byte {
	var b bytes.Buffer
	b.WriteString("\x89PNG\r\n\x1a\n")
	data := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w), h)
	chunk(&b, "IHDR", append(data, depth, kind, 0, 0, 0))
	return b.Bytes()
}

func chunk(b *bytes.Buffer, kind string, data []byte) {
	_ = binary.Write(b, binary.BigEndian, uint32(len(data)))
	body := append([]byte(kind), data...)
	b.Write(body)
	_ = binary.Write(b, binary.BigEndian, crc32.ChecksumIEEE(body))
}

func TestPicturesOfAnEnemy(t *testing.T) {
	bomb := bytes.NewBuffer(head(wire.MaxShotWidth, wire.MaxShotHeight, 8, 2))
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	z.Close()
	chunk(bomb, "IDAT", packed.Bytes())
	short := encoded(t, flat(10, 10, color.White))
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"nothing":       {nil, "it is no PNG"},
		"html":          {[]byte("<script>alert(1)</script>"), "it is no PNG"},
		"too long":      {make([]byte, wire.MaxShotBytes+1), "it is longer than 10 MiB"},
		"wide":          {head(wire.MaxShotWidth+1, 1, 8, 2), "more than are looked at"},
		"high":          {head(1, wire.MaxShotHeight+1, 8, 2), "more than are looked at"},
		"many pixels":   {bomb.Bytes(), "more than are looked at"},
		"2^31":          {head(1<<31-1, 1<<31-1, 8, 6), "it"},
		"of 16 bits":    {head(100, 100, 16, 6), "other colours"},
		"with palette":  {head(100, 100, 8, 3), "it"},
		"cut":           {short[:len(short)-20], "it is a damaged PNG"},
		"grey, bundled": {encoded(t, image.NewGray(image.Rect(0, 0, 2, 2))), "other colours"},
	} {
		if _, err := Read(c.body); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What is beside the picture in its file is not written again.
func TestOnlyThePictureIsWritten(t *testing.T) {
	body := encoded(t, flat(4, 4, color.RGBA{1, 2, 3, 255}))
	var with bytes.Buffer
	with.Write(body[:33]) // signature and IHDR
	chunk(&with, "tEXt", []byte("Comment\x00<script>"))
	with.Write(body[33:])
	with.WriteString("<script>trailing</script>")
	img, err := Read(with.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Write(&out, img); err != nil || bytes.Contains(out.Bytes(), []byte("script")) || img.RGBAAt(1, 1) != (color.RGBA{1, 2, 3, 255}) {
		t.Errorf("%v %q", err, out.Bytes())
	}
}

func TestWhatIsTransparentIsWhite(t *testing.T) {
	img := image.NewNRGBA(image.Rect(0, 0, 2, 1))
	img.SetNRGBA(0, 0, color.NRGBA{255, 0, 0, 255})
	got, err := Read(encoded(t, img))
	if err != nil || got.RGBAAt(0, 0) != (color.RGBA{255, 0, 0, 255}) || got.RGBAAt(1, 0) != (color.RGBA{255, 255, 255, 255}) {
		t.Errorf("%v %v", got, err)
	}
}

func TestDifference(t *testing.T) {
	white := flat(10, 10, color.White)
	other := flat(10, 10, color.White)
	other.Set(3, 4, color.RGBA{255, 255, 240, 255})
	other.Set(5, 5, color.RGBA{250, 250, 250, 255}) // near enough
	drawn, changed, total := Difference(white, other)
	if changed != 1 || total != 100 || drawn.RGBAAt(3, 4).R == drawn.RGBAAt(3, 4).G || drawn.RGBAAt(0, 0).R != drawn.RGBAAt(0, 0).G {
		t.Errorf("%d of %d", changed, total)
	}
	if drawn, changed, total = Difference(white, flat(10, 15, color.White)); changed != 50 || total != 150 || drawn.Rect.Dy() != 15 {
		t.Errorf("higher: %d of %d", changed, total)
	}
	if _, changed, _ = Difference(white, white); changed != 0 {
		t.Errorf("itself: %d", changed)
	}
}

// A wide and a high picture of few pixels each would be drawn as one of many.
func TestDifferenceIsBounded(t *testing.T) {
	wide, high := flat(wire.MaxShotWidth, 1, color.White), flat(1, wire.MaxShotHeight, color.White)
	if drawn, changed, total := Difference(wide, high); drawn != nil || changed != 0 || total != 0 {
		t.Errorf("%v: %d of %d", drawn.Rect, changed, total)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(head(10, 10, 8, 6))
	f.Fuzz(func(t *testing.T, body []byte) {
		img, err := Read(body)
		if err == nil && img.Rect.Dx()*img.Rect.Dy() > wire.MaxShotPixels {
			t.Errorf("%v", img.Rect)
		}
	})
}
