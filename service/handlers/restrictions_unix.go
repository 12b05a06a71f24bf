//go:build unix

package handlers

import "github.com/queuectl/queuectl/queue"

// checkSystemSupportsJob accepts every job. On Unix, jobs can have a terminal and use systemd credentials.
func checkSystemSupportsJob(*queue.Job) error { return nil }
