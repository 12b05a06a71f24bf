package runner

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// What is gathered while the service reads slowly does not spoil what is being
// written to it, also after the writer was woken for nothing.
func TestGatheringSparesWhatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, ours := net.Pipe()
		c := &conn{net: ours, wake: make(chan struct{}, 1), end: make(chan struct{})}
		go c.write() // ends with close
		defer c.close()
		got := make([]byte, 5)
		read := func(want string) {
			t.Helper()
			if _, err := io.ReadFull(service, got[:len(want)]); err != nil || string(got[:len(want)]) != want {
				t.Errorf("read %q, %v, want %q", got[:len(want)], err, want)
			}
		}
		c.send([]byte("first"), 0)
		read("first")
		synctest.Wait()
		c.flush()
		synctest.Wait() // woken for nothing
		c.send([]byte("one"), 0)
		synctest.Wait() // it is being written
		c.send([]byte("two"), 0)
		read("one")
		read("two")
	})
}
