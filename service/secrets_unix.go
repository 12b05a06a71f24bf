//go:build unix

package service

import "github.com/queuectl/queuectl/queue"

// checkSecrets accepts every job, since systemd credentials may exist.
func checkSecrets(*queue.Job) error { return nil }
