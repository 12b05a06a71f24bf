package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// reopenLog reopens the log at path on each SIGHUP, for standard error and for log, which is the
// same file. The service sends the signal after the log was moved and the new file exists. If path
// is "", the name of the log is unknown, and reopenLog changes nothing.
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
