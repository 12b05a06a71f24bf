package runner

import "os"

// LockRunnersDir returns nil, because Windows has no runners of root.
func (l RunnersLocation) LockRunnersDir() (*os.File, error) { return nil, nil }
