package runner

import "os"

// LockRunners returns nil, because Windows has no runners of root.
func (l Location) LockRunners() (*os.File, error) { return nil, nil }
