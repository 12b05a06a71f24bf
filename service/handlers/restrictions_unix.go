//go:build unix

package handlers

import "github.com/queuectl/queuectl/queue"

// checkSecrets accepts every job. Secrets are systemd credentials, and on Unix the job's credentials may
// exist.
func checkSecrets(*queue.Job) error { return nil }

// checkTerminal accepts every job, since jobs on Unix can have a terminal.
func checkTerminal(*queue.Job) error { return nil }
