package launcher

import (
	"math"
	"time"
)

// Never is a time since boot that is never reached. It means that no deadline is set.
const Never = time.Duration(math.MaxInt64)
