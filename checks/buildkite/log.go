package buildkite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"inspect/envs/proc"
)

// maxLog bounds how much of a log is read to come to its end where Buildkite
// does not send the end alone, in bytes.
const maxLog = 256 << 20

// Log is the end of a job's log, as text.
type Log struct {
	Text   string
	Size   int64 // of the whole log in bytes, with what was taken out; -1 if not known
	Cut    bool  // it begins before Text
	Broken bool  // it did not arrive whole: there is more after or before Text
}

// LogTail reads at most most bytes of the end of a job's log. The size is asked
// for first, then only the end is read. Terminal sequences, Buildkite's own
// timestamps and control characters are taken out. Half a log is no error: Broken
// says so. The token needs the scope read_build_logs.
func (c *Client) LogTail(ctx context.Context, org, pipeline string, number int, job string, most int) (Log, error) {
	path, err := ofJob(org, pipeline, number, job, "log")
	if err != nil {
		return Log{}, err
	}
	if most <= 0 {
		return Log{}, fmt.Errorf("%d bytes of a log cannot be read", most)
	}
	k := call{what: fmt.Sprintf("read the log of job %s of build %d of %s/%s", job, number, org, pipeline), scope: "read_build_logs"}
	size, err := c.logSize(ctx, k, path)
	if err != nil || size == 0 {
		return Log{Size: max(size, 0)}, err
	}
	header := map[string]string{"Accept": "text/plain"}
	if size < 0 || size > int64(most) {
		header["Range"] = "bytes=-" + strconv.Itoa(most)
	}
	var kept, now *tail // of the try that brought most, and of the present one
	answer, err := c.do(ctx, k, "GET", path, header, nil, func() any {
		kept, now = better(kept, now), &tail{Tail: proc.Tail{N: int64(most)}}
		return now
	})
	kept = better(kept, now)
	var e *Error
	switch {
	case errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable:
		return Log{}, nil // an empty log has no end
	case err != nil && (kept == nil || kept.read == 0 || ctx.Err() != nil):
		return Log{}, err
	}
	out := Log{Size: size, Broken: err != nil}
	raw := kept.Bytes()
	out.Cut = kept.Cut()
	if answer != nil && answer.Response != nil {
		from, total := contentRange(answer.Header.Get("Content-Range"))
		switch {
		case answer.StatusCode == http.StatusPartialContent && total >= 0:
			out.Size, out.Cut = total, from > 0
		case answer.StatusCode == http.StatusPartialContent:
			out.Cut = true
		case size >= 0 && kept.read < size:
			out.Broken = true // cut short by something that did not say so
		default:
			out.Size = max(size, kept.read)
		}
	}
	out.Text = Strip(string(raw), out.Cut)
	return out, nil
}

func better(a, b *tail) *tail {
	if a == nil || b != nil && b.read >= a.read {
		return b
	}
	return a
}

// logSize is -1 where Buildkite does not say.
func (c *Client) logSize(ctx context.Context, k call, path string) (int64, error) {
	answer, err := c.do(ctx, k, "HEAD", path, map[string]string{"Accept": "text/plain"}, nil, nil)
	var e *Error
	if errors.As(err, &e) && (e.Status == http.StatusMethodNotAllowed || e.Status == http.StatusNotAcceptable) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	if answer.Header.Get("Content-Length") == "" {
		return -1, nil
	}
	return answer.ContentLength, nil
}

// contentRange reads "bytes 900-999/1000": where the part begins and how long all
// of it is; -1 where it does not say.
func contentRange(s string) (from, total int64) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	part, all, cut := strings.Cut(rest, "/")
	begin, _, dash := strings.Cut(part, "-")
	from, err := strconv.ParseInt(begin, 10, 64)
	if !ok || !cut || !dash || err != nil || from < 0 {
		return -1, -1
	}
	total, err = strconv.ParseInt(all, 10, 64)
	if err != nil || total < 0 {
		return from, -1
	}
	return from, total
}
