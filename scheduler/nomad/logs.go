package nomad

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// Logs returns the end of what a runner wrote, its errors last. Nodes remove
// them when they need room; nothing there is no error.
func (e *Engine) Logs(ctx context.Context, stored json.RawMessage, max int) ([]byte, error) {
	r, err := readRef(stored)
	if err != nil || max <= 0 {
		return nil, err
	}
	f, err := e.facts(ctx, stored)
	if err != nil {
		return nil, err
	}
	a := f.attempt()
	if a == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var out []byte
	for _, kind := range []string{"stderr", "stdout"} {
		q, err := e.nomad.query(ctx, r)
		if err != nil {
			return nil, e.o.trouble(err)
		}
		tail, err := e.nomad.tail(a.ID, kind, max-len(out), q)
		if err != nil {
			return nil, e.o.trouble(err)
		}
		out = append(tail, out...)
	}
	return out, nil
}

// tail reads the end of one of a task's two logs. It goes through the servers:
// nodes need not be reachable from here.
func (c *client) tail(alloc, kind string, max int, q *api.QueryOptions) ([]byte, error) {
	if max <= 0 {
		return nil, nil
	}
	q.Params["task"], q.Params["type"], q.Params["plain"] = taskName, kind, "true"
	q.Params["origin"], q.Params["offset"] = "end", strconv.Itoa(max)
	b, err := c.raw("/v1/client/fs/logs/"+alloc, int64(max), q)
	// What a node has removed is answered with either.
	if status, _, ok := answered(err); ok && (status == http.StatusNotFound || status == http.StatusInternalServerError) {
		return nil, nil
	}
	return b, err
}
