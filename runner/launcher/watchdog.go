package launcher

import (
	"math"
	"time"
)

// NoKillDeadline, as an argument of Watchdog.SetKillDeadline, means that the runner has no deadline. It is a time since
// boot that is never reached.
const NoKillDeadline = time.Duration(math.MaxInt64)
