package queue

// TrySend sends a value if the channel has room, and otherwise does nothing. It is used for channels that
// buffer one wake-up: if the channel is full, the receiver will act on the wake-up in it.
func TrySend[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}
