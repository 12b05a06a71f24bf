package wire

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// While the service reads slowly, newly added frames do not overwrite the frames that Run is writing. This is
// also true after Run was woken up without having work.
func TestOutboxKeepsBytesBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, runnerEnd := net.Pipe()
		o := NewOutbox(runnerEnd)
		go o.Run() // ends when o is closed
		defer o.Close()
		send := func(text string) { o.Send([]byte(text)) }
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
		Wake(o.wake)
		synctest.Wait() // the writer was woken up without having work
		send("one")
		synctest.Wait() // the writer is now blocked in writing this frame
		send("two")
		read("one")
		read("two")
	})
}
