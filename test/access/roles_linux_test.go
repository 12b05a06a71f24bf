package access

import (
	"fmt"
	"os"
)

// roles contains what this test binary does as a helper process, by the environment variable that selects it.
var roles = map[string]func() int{
	abuserRoleVar: runAttacks,
	callerRoleVar: func() int {
		fmt.Fprintln(os.Stderr, execAsUnusualCaller())
		return 1
	},
}
