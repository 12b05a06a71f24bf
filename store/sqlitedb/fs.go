package sqlitedb

import "github.com/queuectl/queuectl/queue"

// fileSystem says whether a file system is suitable for a queue. On network and FUSE file systems, other
// machines or other programs may write too. There, locks, fsync and the shared memory of WAL are
// unreliable.
type fileSystem struct {
	Name    string
	Refused bool
	Note    string
}

// Refuse returns the error for a directory on an unreliable file system, or nil.
func (f fileSystem) Refuse(dir string) error {
	if !f.Refused {
		return nil
	}
	return queue.Invalid("dir", "%s is on %s, where locks and fsync are not reliable; choose a directory on a local disk",
		dir, f.Name)
}
