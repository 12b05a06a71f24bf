package queue

// TrySend sends a value if the channel has room for it, and otherwise does nothing. Use it to wake a goroutine through
// a channel with a buffer of one value: if the channel is full, the goroutine will wake up anyway.
func TrySend[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}
