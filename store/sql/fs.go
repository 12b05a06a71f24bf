package sql

import "github.com/queuectl/queuectl/queue"

// A fileSystem is one that is worth a word: on one that other machines, or programs
// that the kernel cannot vouch for, also write, neither locks nor fsync nor the shared
// memory of WAL can be relied upon.
type fileSystem struct {
	name    string
	refused bool
	note    string
}

// refuse is the error of a folder on a file system that cannot be relied upon.
func (f fileSystem) refuse(dir string) error {
	if !f.refused {
		return nil
	}
	return queue.Invalid("dir", "%s is on %s, where locks and fsync are not reliable; choose a directory on a local disk", dir, f.name)
}
