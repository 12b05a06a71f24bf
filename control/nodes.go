package control

import "context"

// NodeAPI lists and changes the nodes that share the queue. A node is one service.
type NodeAPI interface {
	// ListNodes lists the nodes, sorted by name. If only one node uses the queue, it lists that node.
	ListNodes(ctx context.Context, p NodeListParams) (NodeList, error)
	// SetNodeDraining stops a node from claiming jobs, or lets it claim jobs again. It returns once no job can start on
	// the node any more or, like AdminAPI.StartOrEndDrain, returns an error after a time limit.
	SetNodeDraining(ctx context.Context, p NodeDrainParams) (NodeView, error)
	// RemoveNode deletes a node whose service is not running.
	RemoveNode(ctx context.Context, p NodeRemoveParams) (NodeView, error)
}

// NodeView describes a node in an answer.
type NodeView struct {
	Name string `json:"name"`
	// State is alive, draining, drained, stopped or away. "away" means that the service of the node has not
	// been stopped, but sends no heartbeats.
	State          string            `json:"state"`
	SentThisAnswer bool              `json:"this"` // the node has sent this answer
	WorkerCount    int               `json:"workers"`
	RunningJobs    int               `json:"running"` // number of running jobs
	Labels         map[string]string `json:"labels"`
	Resources      map[string]int    `json:"resources"`
	Version        string            `json:"version"`
	JoinedAt       Time              `json:"joined_at"`
	LastHeartbeat  Time              `json:"last_heartbeat"`
}

// NodeListParams requests the nodes whose names follow the cursor.
type NodeListParams struct {
	Cursor string `json:"cursor,omitempty" rule:"name"`
}

// NodeList is a page of nodes, sorted by name. NextCursor is the cursor of the next page; "" on the last page.
type NodeList struct {
	Nodes      []NodeView `json:"nodes"`
	NextCursor string     `json:"next,omitempty"`
}

// NodeRemoveParams holds the parameters of the method node.rm: the name of a node.
type NodeRemoveParams struct {
	Name string `json:"name" rule:"name,required"`
}

// NodeDrainParams holds the parameters of the method node.drain, which stops a node from claiming jobs or, with
// EndDrain, lets it claim jobs again.
type NodeDrainParams struct {
	Name          string `json:"name" rule:"name,required"`
	EndDrain      bool   `json:"off,omitempty"`
	WaitUntilIdle bool   `json:"wait,omitempty"` // return only when no job is running on the node
}
