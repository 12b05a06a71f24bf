package access

import (
	"fmt"
	"os"
)

// helperProcessMains contains the functions that this test binary executes instead of its tests, by the environment
// variable that requests the function.
var helperProcessMains = map[string]func() int{
	abuserSocketEnvVar: runAttacks,
	unusualCallerEnvVar: func() int {
		fmt.Fprintln(os.Stderr, execAsUnusualCaller())
		return 1
	},
}
