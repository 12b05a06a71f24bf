package access

import (
	"fmt"
	"os"
)

// roles contains the functions of helper processes, by the environment variable that selects them.
var roles = map[string]func() int{
	abuserRole: runAttacks,
	callerRole: func() int {
		fmt.Fprintln(os.Stderr, unusualCaller())
		return 1
	},
}
