package testrig

import (
	"encoding/json"
)

// node is a row of "node list".
type node struct {
	Name, State string
	This        bool
	Running     int
}

func (q *Queue) Nodes() map[string]node {
	q.Helper()
	var list []node
	if err := json.Unmarshal([]byte(q.Must("node", "list", "--json")), &list); err != nil {
		q.Fatal(err)
	}
	byName := map[string]node{}
	for _, n := range list {
		byName[n.Name] = n
	}
	return byName
}
