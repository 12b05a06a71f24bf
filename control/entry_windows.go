package control

import "github.com/queuectl/queuectl/queue"

// notLetIn is why this user may not use a socket, and how that can be changed.
func notLetIn(path string) error {
	return queue.Errorf(queue.CodeDenied, "you may not use %s; a service lets others in by its setting [access]", path)
}
