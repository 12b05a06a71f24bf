//go:build unix

package service

import "github.com/queuectl/queuectl/queue"

// checkSecrets refuses a job that asks for a credential where there are none.
func checkSecrets(*queue.Job) error { return nil }
