// Package sockpath reaches Unix sockets, and gets around the length of their addresses.
package sockpath

import (
	"fmt"
	"os"
	"path/filepath"
)

// Max is the longest path that a socket's address holds, in bytes.
const Max = 107

// Short is a path to the same place that fits into an address: one that goes by a
// descriptor of the folder, where it must, which Linux alone has. It is valid until
// done.
func Short(path string) (short string, done func(), err error) {
	if len(path) <= Max {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { dir.Close() }, nil
}
