package launcher

import (
	"math"
	"time"
)

// NoDeadline is a time since boot that is never reached. It means that no deadline is set.
const NoDeadline = time.Duration(math.MaxInt64)
