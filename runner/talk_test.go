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
		o := newOutbox(ours)
		go o.run() // ends with close
		defer o.close()
		send := func(text string) { o.send([]byte(text)) }
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
		poke(o.wake)
		synctest.Wait() // woken for nothing
		send("one")
		synctest.Wait() // it is being written
		send("two")
		read("one")
		read("two")
	})
}
