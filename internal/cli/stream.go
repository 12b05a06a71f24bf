package cli

import (
	"context"

	"github.com/queuectl/queuectl/control"
)

// Stream starts to follow events and passes every event to the function in the parameter each. The
// channel gets the error when the connection is lost or ctx ends.
func Stream(ctx context.Context, c *control.Client, p control.Events, each func(control.Event) error) (ended <-chan error) {
	end := make(chan error, 1)
	p.Follow = true
	go func() { // this goroutine ends when the stream ends
		_, err := c.Events(ctx, p, each)
		end <- err
	}()
	return end
}
