package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// reopenLog makes standard error, and log, which is the same file, the file of a path at each SIGHUP:
// the service sends one after the log was moved, once it has made the new file. "" is a log of
// unknown name.
func reopenLog(log *os.File, path string) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	for range hangups {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // the moved file stays the log
		}
		unix.Dup3(fd, 2, 0)
		unix.Dup3(fd, int(log.Fd()), unix.O_CLOEXEC)
		unix.Close(fd)
	}
}
