//go:build linux || windows

package testrig

import (
	"fmt"
	"io"
)

// SendRawLine sends a line to the service unchanged.
func (w *ServiceConn) SendRawLine(line string) {
	w.Helper()
	if _, err := io.WriteString(w, line+"\n"); err != nil {
		w.Fatal(err)
	}
}

// RequestJSON returns the text of a request that calls a method.
func RequestJSON(method, paramsJSON string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, paramsJSON)
}
