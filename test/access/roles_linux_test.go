package access

import (
	"fmt"
	"os"
)

// roles contains the functions of helper processes, by the environment variable that selects them.
var roles = map[string]func() int{
	abuserRoleVar: runAttacks,
	callerRoleVar: func() int {
		fmt.Fprintln(os.Stderr, execAsUnusualCaller())
		return 1
	},
}
