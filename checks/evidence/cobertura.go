package evidence

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
)

// Bounds of a document. The depth is enough for the conditions of a line of a method.
const (
	maxCoberturaDepth    = 16
	maxCoberturaElements = 2 * maxCovered
)

// readCobertura reads Cobertura's XML: the lines of each class with a file name.
func readCobertura(name string, body []byte, p *profile) {
	if why := badXML(body, maxCoberturaDepth, maxCoberturaElements, func(xml.StartElement) {}); why != "" {
		p.broken("%s %s", name, why)
		return
	}
	d := xml.NewDecoder(bytes.NewReader(body))
	file := ""
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.broken("%s is not XML that can be read", name)
			return
		}
		start, ok := t.(xml.StartElement)
		if !ok {
			continue
		}
		attr := func(key string) string {
			for _, a := range start.Attr {
				if a.Name.Local == key {
					return a.Value
				}
			}
			return ""
		}
		switch start.Name.Local {
		case "class":
			file, _ = inRepository(attr("filename"))
		case "line":
			n, err1 := strconv.Atoi(attr("number"))
			hits, err2 := strconv.ParseFloat(attr("hits"), 64)
			if err1 == nil && err2 == nil {
				p.mark(file, n, hits > 0)
			}
		}
	}
}
