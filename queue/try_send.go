package queue

// TrySend sends a value if the channel has room, and otherwise does nothing. It is used to wake a receiver over
// a channel that holds one value: if the channel is full, the receiver is going to wake up anyway.
func TrySend[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}
