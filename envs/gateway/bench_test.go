package gateway

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkFirstByte measures what door and handler add until the first byte of
// an answer: the same request to a provider that answers at once, straight and
// through both, in turn. The body is as large as a real agent's first one. The
// aim is 5 ms at most, in the median; the ledger here is in memory.
func BenchmarkFirstByte(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"50KB", 50 << 10}, {"1MB", 1 << 20}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, setup{api: apiAnthropic, budget: 1 << 60, deaf: true, answer: func(rw http.ResponseWriter, r *http.Request) { events(rw, messagesStream...) }})
			// Text with line ends, in messages of 2 KB, as conversations have it.
			line := strings.Repeat("func main() { fmt.Println(\\\"hello\\\") }\\n", 50)
			message := `{"role":"user","content":[{"type":"text","text":"` + line + `"}]}`
			n := c.size/len(message) + 1
			ask := `{"model":"` + testModel + `","max_tokens":1000,"stream":true,"messages":[` + strings.TrimSuffix(strings.Repeat(message+",", n), ",") + `]}`

			direct := &http.Client{Transport: &http.Transport{DisableCompression: true}}
			through := w.client()
			once := func(c *http.Client, base string) time.Duration {
				req, err := http.NewRequest("POST", base+pathOf("messages"), bytes.NewReader([]byte(ask)))
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				begun := time.Now()
				res, err := c.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				var first [1]byte
				if _, err := io.ReadFull(res.Body, first[:]); err != nil {
					b.Fatal(err)
				}
				took := time.Since(begun)
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					b.Fatal(res.Status)
				}
				return took
			}
			for range 3 { // connections and caches
				once(direct, w.provider.URL)
				once(through, "http://model")
			}
			var straight, round []time.Duration
			for b.Loop() {
				straight = append(straight, once(direct, w.provider.URL))
				round = append(round, once(through, "http://model"))
			}
			b.ReportMetric(median(straight), "direct-ms")
			b.ReportMetric(median(round), "gateway-ms")
			b.ReportMetric(median(round)-median(straight), "added-ms")
		})
	}
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}

func BenchmarkCheck(b *testing.B) {
	in := body("chat", `"messages":[`+strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"`+strings.Repeat("words and\\nlines ", 100)+`"},`, 500), ",")+`]`)
	rules := newRules()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		c, bad := rules.check(endpointOf("chat"), in, testCaller, of("chat"))
		if bad != nil {
			b.Fatal(bad.message)
		}
		encode(make([]byte, 0, len(in)+256), c.body)
	}
}
