package control

// NodeView is a machine that shares the queue as the wire shows it.
type NodeView struct {
	Name          string            `json:"name"`
	State         string            `json:"state"` // alive, draining, drained, stopped, or away: its service has not been heard of and was not stopped
	This          bool              `json:"this"`  // whose service answers
	Workers       int               `json:"workers"`
	Running       int               `json:"running"` // jobs
	Labels        map[string]string `json:"labels"`
	Resources     map[string]int    `json:"resources"`
	Version       string            `json:"version"`
	JoinedAt      Time              `json:"joined_at"`
	LastHeartbeat Time              `json:"last_heartbeat"`
}

// Nodes asks for those after a cursor.
type Nodes struct {
	Cursor string `json:"cursor,omitempty"`
}

// NodeList lists nodes by name. There are others after Next, if that is not "".
type NodeList struct {
	Nodes []NodeView `json:"nodes"`
	Next  string     `json:"next,omitempty"`
}

// NodeName names a node.
type NodeName struct {
	Name string `json:"name"`
}

// NodeDrain has a node claim nothing more, or again.
type NodeDrain struct {
	Name string `json:"name"`
	Off  bool   `json:"off,omitempty"`
	Wait bool   `json:"wait,omitempty"` // until nothing runs there
}
