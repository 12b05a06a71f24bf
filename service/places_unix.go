//go:build unix

package service

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// examinePlaces looks at who may use the socket, whose mode is to be socket, and read
// the outputs.
func examinePlaces(p config.Places, socket fs.FileMode) []store.Finding {
	var list []store.Finding
	for _, c := range []struct {
		path string
		mode fs.FileMode
	}{{p.Socket, socket}, {runnersOf(p), 0o700}, {filepath.Dir(runner.OutputPath(runnersOf(p), "1")), 0o700}} {
		info, err := os.Lstat(c.path)
		if err == nil && info.Mode().Perm()&0o077&^c.mode != 0 {
			list = append(list, store.Finding{Check: "permissions", Level: store.Failure, Message: fmt.Sprintf("%s is open to others (mode %03o)", c.path, info.Mode().Perm()), Next: fmt.Sprintf("run: chmod %03o %s", c.mode, c.path)})
		}
	}
	return list
}
