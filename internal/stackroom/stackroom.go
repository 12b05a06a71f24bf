// Package stackroom has the main goroutine's stack grow once, to what a client needs, while
// there is next to nothing on it. Otherwise it doubles two or three times deep in the
// initialization of other packages and in the verb, each time with all that is on it and with
// the tables that say where pointers are, which are not in memory yet: a twentieth of the time
// that an enqueue takes. The package imports nothing, so that it comes before the others.
package stackroom

// size is so much that the stack is 32 KiB afterwards.
// See docs/decisions/0096.
const size = 20 << 10

// at is 0; the compiler does not know that.
var at int

func init() { grow() }

// grow has room for an array, which it does not touch: what is made sure of at its beginning
// is all that it is for.
//
//go:noinline
func grow() {
	if at == 0 {
		return
	}
	var room [size]byte
	room[at] = 1
	at = int(room[at/2])
}
