//go:build !linux

package process

// Limiter makes this process a limiter if it was started as one; on this system none is.
func Limiter() {}
