package gateway

import (
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Price is what tokens of a model cost, each in billionths of a US dollar per
// token.
type Price struct {
	Input        spec.Money // not from the cache
	CacheRead    spec.Money // from the cache
	CacheWrite   spec.Money // put into the cache, for minutes
	CacheWrite1h spec.Money // put into the cache for an hour; 0: there is no price, so it is not done
	Output       spec.Money // reasoning included
}

// usage is how many tokens of each price a call took.
type usage struct {
	input, cacheRead, write, write1h, output int64
}

func (p Price) cost(u usage) int64 {
	return u.input*int64(p.Input) + u.cacheRead*int64(p.CacheRead) + u.write*int64(p.CacheWrite) +
		u.write1h*int64(p.CacheWrite1h) + u.output*int64(p.Output)
}

// Estimates of what is not counted yet. Three bytes to a token lies above what
// text and code take with today's models (three and a half to five).
const (
	bytesPerToken  = 3
	tokensPerImage = 2000
	// leastOutput is what a call must be able to answer to be worth beginning.
	leastOutput = 1024
	// unseenPerSecond is how many tokens a model is taken to make in a second that
	// nobody sees: of reasoning, or of an answer that comes in one piece.
	unseenPerSecond = 100
)

func tokensOf(bytes int64) int64 { return (bytes + bytesPerToken - 1) / bytesPerToken }

// plan is what a call can cost.
type plan struct {
	input       int64 // tokens
	inputCost   int64
	want, least int64
}

// plan estimates what c can cost when its body is size bytes long.
func (p Price) plan(c *call, size int) plan {
	e := plan{input: tokensOf(int64(size-c.found.imageBytes)) + tokensPerImage*int64(c.found.images)}
	dearest := max(p.Input, p.CacheRead, p.CacheWrite)
	if c.found.hour {
		dearest = max(dearest, p.CacheWrite1h)
	}
	e.inputCost = e.input * int64(dearest)
	e.want = e.inputCost + c.most*int64(p.Output)
	e.least = e.inputCost + min(c.most, leastOutput)*int64(p.Output)
	return e
}

// affords is how many output tokens granted pays, once the input is paid.
func (p Price) affords(e plan, granted, most int64) int64 {
	if p.Output == 0 || granted >= e.want {
		return most
	}
	return min(most, (granted-e.inputCost)/int64(p.Output))
}

// settle is what a call comes to: by the provider's numbers if it gave them,
// else by what was seen of its answer, and then never more than was granted.
func settle(m Model, e plan, granted int64, r reading) wire.Usage {
	u := r.usage
	if !r.reported && !r.free {
		if !r.input {
			u.input = e.input
		}
		u.output = max(u.output, tokensOf(r.bytes), r.unseen)
	}
	out := wire.Usage{
		Model:            m.ID,
		InputTokens:      u.input,
		CacheReadTokens:  u.cacheRead,
		CacheWriteTokens: u.write + u.write1h,
		OutputTokens:     u.output,
		Priced:           m.Priced,
		Reported:         r.reported,
	}
	if m.Priced {
		out.Cost = m.Price.cost(u)
		if !r.reported {
			out.Cost = min(out.Cost, granted)
		}
	}
	return out
}
