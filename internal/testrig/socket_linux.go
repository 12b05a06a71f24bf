package testrig

import (
	"encoding/json"
	"fmt"
	"time"
)

// IsAnswering reports whether the service accepts and answers a new connection.
func (q *Queue) IsAnswering() bool {
	c, err := Dial(q.Dir)
	if err != nil {
		return false
	}
	defer c.Close()

	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(c, `{"jsonrpc":"2.0","id":1,"method":"hello"}`); err != nil {
		return false
	}
	var a WireMessage
	return json.NewDecoder(c).Decode(&a) == nil && a.Error == nil
}
