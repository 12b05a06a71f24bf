// Package sockpath connects to Unix sockets, also to those whose path is too long for a socket address.
package sockpath

import (
	"fmt"
	"os"
	"path/filepath"
)

// MaxPathBytes is the longest path that fits into a socket's address, in bytes.
const MaxPathBytes = 107

// ShortPath returns a path to the same file that is short enough for a socket address. For a long path, the result
// leads through a descriptor of the file's directory. This works only on Linux. The result is valid until the caller
// calls release.
func ShortPath(path string) (shortPath string, release func(), err error) {
	if len(path) <= MaxPathBytes {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { dir.Close() }, nil
}
