package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// reopenLog reopens the log at path on each SIGHUP. It redirects standard error and log, which are the
// same file. The service sends the signal when the log was moved and the new file exists. If path is
// "", the runner does not know the name of its log, and reopenLog does nothing.
func reopenLog(log *os.File, path string) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	for range hangups {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // if the new file cannot be opened, keep the moved file
		}
		unix.Dup3(fd, 2, 0)
		unix.Dup3(fd, int(log.Fd()), unix.O_CLOEXEC)
		unix.Close(fd)
	}
}
