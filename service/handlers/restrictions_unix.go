//go:build unix

package handlers

import "github.com/queuectl/queuectl/queue"

// checkSystem accepts every job. On Unix, jobs can have a terminal, and the systemd credentials of a job may exist.
func checkSystem(*queue.Job) error { return nil }
