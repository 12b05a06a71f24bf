// Package stack grows the stack of the main goroutine, in one step, to the size that a client needs. It does this at
// the start of the program, when the stack is nearly empty.
//
// Without this package, the stack would grow two or three times later: while other packages are initialized and
// while the command runs. Each time, the runtime copies the whole stack and reads pointer maps that are not in
// memory yet. That takes a twentieth of the time of an enqueue.
//
// The package imports nothing, so Go initializes it first.
package stack

// stackFrameBytes is the size of an array on the stack. It is so large that the runtime grows the stack to 32 KiB. See
// docs/decisions/0096.
const stackFrameBytes = 20 << 10

// alwaysZeroIndex is always 0, but the compiler does not know that. So it cannot remove the array in growStack.
var alwaysZeroIndex int

func init() { growStack() }

// growStack grows the stack. It needs no statement for this: the runtime grows the stack on entry to a function with a
// large array in its frame. growStack returns before it uses the array.
//
//go:noinline
func growStack() {
	if alwaysZeroIndex == 0 {
		return
	}
	var padding [stackFrameBytes]byte
	padding[alwaysZeroIndex] = 1
	alwaysZeroIndex = int(padding[alwaysZeroIndex/2])
}
