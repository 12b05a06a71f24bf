//go:build !linux

package process

// Limiter does nothing on this system, where no process is started as a limiter.
func Limiter() {}
