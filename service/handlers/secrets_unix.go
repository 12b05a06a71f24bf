//go:build unix

package handlers

import "github.com/queuectl/queuectl/queue"

// checkSecrets accepts every job. Secrets are systemd credentials, and on Unix the job's credentials may
// exist.
func checkSecrets(*queue.Job) error { return nil }
