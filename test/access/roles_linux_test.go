package access

import (
	"fmt"
	"os"
)

var roles = map[string]func() int{
	abuserRole: runAttacks,
	callerRole: func() int {
		fmt.Fprintln(os.Stderr, unusualCaller())
		return 1
	},
}
