package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// reopenLogOnSIGHUP opens the file at path and redirects log and standard error to it each time the process receives
// SIGHUP. The service sends SIGHUP after log rotation has moved the old file and a new file exists. If path is "",
// reopenLogOnSIGHUP changes nothing.
func reopenLogOnSIGHUP(log *os.File, path string) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	for range hangups {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // if the new file cannot be opened, keep writing to the moved file
		}
		unix.Dup3(fd, 2, 0)
		unix.Dup3(fd, int(log.Fd()), unix.O_CLOEXEC)
		unix.Close(fd)
	}
}
