package wire

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// While Run is writing a frame to a slow reader, new frames do not overwrite this frame in memory. This is
// also true if Run was woken before without anything to write.
func TestOutboxKeepsBytesBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, runnerEnd := net.Pipe()
		o := NewOutbox(runnerEnd)
		go o.Run() // ends when o is closed
		defer o.Close()
		send := func(text string) { o.SendBytes([]byte(text)) }
		got := make([]byte, 5)
		read := func(want string) {
			t.Helper()
			if _, err := io.ReadFull(service, got[:len(want)]); err != nil || string(got[:len(want)]) != want {
				t.Errorf("read %q, %v, want %q", got[:len(want)], err, want)
			}
		}
		send("first")
		read("first")
		synctest.Wait()
		SendWakeSignal(o.wake)
		synctest.Wait() // Run was woken up, although nothing was to be written
		send("one")
		synctest.Wait() // Run is now blocked in writing this frame
		send("two")
		read("one")
		read("two")
	})
}
