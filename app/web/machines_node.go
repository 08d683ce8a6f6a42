package web

import (
	"strconv"

	"inspect/envs/wire"
)

func (m *machines) refs(c *call) (any, error) { return m.Refs(c.r.Context(), c.node) }

func (m *machines) nextWork(c *call) (any, error) {
	work, err := m.NextWork(c.r.Context(), c.node)
	if err != nil || work == nil {
		return nil, err
	}
	return work, nil
}

// workID is the number of the work that a request is about.
func (c *call) workID() (int64, error) {
	id, err := strconv.ParseInt(c.r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return 0, badRequest("the work is not named by its number")
	}
	return id, nil
}

func (m *machines) workDone(c *call) (any, error) {
	id, err := c.workID()
	if err != nil {
		return nil, err
	}
	var in wire.WorkResult
	if err := c.decode(maxStateBody, &in); err != nil {
		return nil, err
	}
	return nil, m.WorkDone(c.r.Context(), c.node, id, in)
}

func (m *machines) nodeSecrets(c *call) (any, error) {
	id, err := c.workID()
	if err != nil {
		return nil, err
	}
	var in wire.SecretsRequest
	if err := c.decode(maxSmallBody, &in); err != nil {
		return nil, err
	}
	return m.NodeSecrets(c.r.Context(), c.node, id, in.Names)
}

func (m *machines) offer(c *call) (any, error) {
	var in wire.SnapshotOffer
	if err := c.decode(maxStateBody, &in); err != nil {
		return nil, err
	}
	return nil, m.Offer(c.r.Context(), c.node, in)
}

func (m *machines) gitToken(c *call) (any, error) {
	var in wire.GitTokenRequest
	if err := c.decode(maxSmallBody, &in); err != nil {
		return nil, err
	}
	return m.NodeGitToken(c.r.Context(), c.node, in)
}

func (m *machines) nodeState(c *call) (any, error) {
	var in wire.NodeState
	if err := c.decode(maxStateBody, &in); err != nil {
		return nil, err
	}
	if in.Node != c.node {
		return nil, badRequest("the token belongs to another node than the one in the body")
	}
	return nil, m.NodeState(c.r.Context(), c.node, in)
}
