//go:build unix

package handlers

import "github.com/queuectl/queuectl/queue"

// checkSystemSupports accepts every job. On Unix, jobs can have a terminal and use systemd credentials.
func checkSystemSupports(*queue.Job) error { return nil }
