//go:build linux || windows

package testrig

import (
	"fmt"
	"io"
)

// SendLine sends a line to the service unchanged.
func (w *Wire) SendLine(line string) {
	w.Helper()
	if _, err := io.WriteString(w, line+"\n"); err != nil {
		w.Fatal(err)
	}
}

// RequestLine returns the text of a request that calls a method.
func RequestLine(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params)
}
