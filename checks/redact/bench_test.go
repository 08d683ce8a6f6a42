package redact

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// What is looked through most: a log without a secret in it, and bytes that are no text.
func BenchmarkFind(b *testing.B) {
	log := strings.Repeat("ok  \texample.com/right/task-runner\t0.12s see https://example.com/through/bk?a=b:c and disk-full\n", 1<<20/98)
	noise := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for name, s := range map[string]string{"log": log, "noise": string(noise)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				Find(s)
			}
		})
	}
}
