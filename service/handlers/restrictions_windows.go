package handlers

import (
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// checkSystemSupportsJob returns an error for a job that needs a terminal or refers to a systemd credential.
func checkSystemSupportsJob(j *queue.Job) error {
	if j.TTY {
		return queue.InvalidFieldError("tty", "jobs cannot have a terminal on Windows; leave tty out")
	}
	for _, e := range j.SecretReferences {
		name, reference, _ := strings.Cut(e, "=")
		if _, credential := queue.CredentialName(reference); credential {
			return queue.InvalidFieldError("env_secret", "%s refers to a systemd credential, which Windows does not have; "+
				"name a file instead", queue.ClipForMessage(name))
		}
	}
	return nil
}
