package testrig

import (
	"os"
)

// FullScale reports whether the test runs at the scale that the contract promises, which takes
// minutes: see "make gates".
func FullScale() bool { return os.Getenv("QUEUECTL_SOAK") != "" }
