package queue

// TrySend sends a value without waiting. If the channel has no room, TrySend does nothing. The receiver of a
// channel that buffers one wake-up then acts on the wake-up that is already there.
func TrySend[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}
