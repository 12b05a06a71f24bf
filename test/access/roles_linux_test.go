package access

import (
	"fmt"
	"os"
)

// roles contains the functions that this test binary executes instead of its tests, by the environment
// variable that requests the function.
var roles = map[string]func() int{
	abuserRoleVar: runAttacks,
	callerRoleVar: func() int {
		fmt.Fprintln(os.Stderr, execAsUnusualCaller())
		return 1
	},
}
