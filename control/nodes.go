package control

import "context"

// NodeAPI lists and changes the nodes that share the queue.
type NodeAPI interface {
	// NodeList lists the nodes in the order of their names. Without other nodes, it lists only the
	// node whose service answers.
	NodeList(ctx context.Context, p NodeListParams) (NodeList, error)
	// NodeDrain stops a node from claiming jobs, or lets it claim again. Like Drain, it returns an
	// error if jobs may still start on the node.
	NodeDrain(ctx context.Context, p NodeDrain) (NodeView, error)
	// NodeRemove deletes a node whose service is not running.
	NodeRemove(ctx context.Context, p NodeName) (NodeView, error)
}

// NodeView describes a node in an answer.
type NodeView struct {
	Name string `json:"name"`
	// State is alive, draining, drained, stopped or away. A node is away if its service did not
	// stop normally but its heartbeats are missing.
	State         string            `json:"state"`
	IsAnswering   bool              `json:"this"` // the node whose service answers
	Workers       int               `json:"workers"`
	Running       int               `json:"running"` // number of running jobs
	Labels        map[string]string `json:"labels"`
	Resources     map[string]int    `json:"resources"`
	Version       string            `json:"version"`
	JoinedAt      Time              `json:"joined_at"`
	LastHeartbeat Time              `json:"last_heartbeat"`
}

// NodeListParams requests the nodes after a cursor.
type NodeListParams struct {
	Cursor string `json:"cursor,omitempty" rule:"name"`
}

// NodeList is a page of nodes in the order of their names. Next is the cursor of the next page, ""
// on the last page.
type NodeList struct {
	Nodes []NodeView `json:"nodes"`
	Next  string     `json:"next,omitempty"`
}

// NodeName is the name of a node.
type NodeName struct {
	Name string `json:"name" rule:"name,required"`
}

// NodeDrain stops a node from claiming jobs or, with EndDrain, lets it claim jobs again.
type NodeDrain struct {
	Name     string `json:"name" rule:"name,required"`
	EndDrain bool   `json:"off,omitempty"`
	Wait     bool   `json:"wait,omitempty"` // send the response once no job is running on the node
}
