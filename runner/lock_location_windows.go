package runner

import "os"

// LockRunners returns nil, because Windows has no runners of root.
func (h Location) LockRunners() (*os.File, error) { return nil, nil }
