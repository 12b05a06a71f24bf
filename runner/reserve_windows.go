package runner

import "os"

// Lock returns nil, because Windows has no runners of root.
func (h Location) Lock() (*os.File, error) { return nil, nil }
