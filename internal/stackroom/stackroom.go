// Package stackroom grows the main goroutine's stack once, to the size that a client needs, while
// it is nearly empty.
//
// Otherwise the stack doubles two or three times later, in the initialization of other packages and
// in the command. Each time, the runtime copies everything on it and reads pointer maps that are
// not in memory yet. That is a twentieth of the time of an enqueue. The package imports nothing, so
// that Go initializes it first.
package stackroom

// size is the array size that makes the stack 32 KiB large.
// See docs/decisions/0096.
const size = 20 << 10

// at is always 0, but the compiler does not know that.
var at int

func init() { grow() }

// grow has a large array in its stack frame. It does not touch the array: the runtime grows the
// stack on entry to the function.
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
