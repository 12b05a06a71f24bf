package register

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/queue"
)

// onlyTrustedReplace rejects a program that other accounts could change, whose folder they could
// change, or above which they could move a folder away. Everyone may create folders on a drive;
// that alone is accepted.
func TestProgramWritableByOthersIsRejected(t *testing.T) {
	const (
		// C:\ as created by Windows.
		drive = "O:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1200a9;;;BU)(A;OICIIO;0x1301bf;;;AU)(A;;LC;;;AU)"
		// Another drive.
		data = "O:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;;0x1301bf;;;AU)(A;OICIIO;0x1301bf;;;AU)"
		// C:\Program Files.
		programs = "O:BAD:(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;;0x1200a9;;;BU)(A;OICIIO;GRGX;;;BU)(A;OICIIO;GA;;;CO)"
		// A new folder in C:\.
		made  = "O:BAD:(A;OICI;FA;;;BA)(A;OICI;0x1301bf;;;AU)"
		users = "O:BUD:(A;OICI;FA;;;BA)"
		child = "O:BAD:(A;OICI;FA;;;BA)(A;;0x40;;;BU)"
	)
	for _, c := range []struct{ drive, above, folder, program, refused string }{
		{drive, programs, programs, programs, ""},
		{data, programs, programs, programs, ""},
		{drive, drive, programs, programs, ""}, // others may change only new folders in it
		{drive, programs, programs, made, `C:\above\folder\q.exe`},
		{drive, programs, made, programs, `C:\above\folder`},
		{drive, programs, drive, programs, `C:\above\folder`},
		{drive, programs, users, programs, `C:\above\folder`},
		{drive, made, programs, programs, `C:\above`},
		{drive, child, programs, programs, `C:\above`},
		{drive, users, programs, programs, `C:\above`},
		{child, programs, programs, programs, `C:\`},
		{users, programs, programs, programs, `C:\`},
	} {
		err := onlyTrustedReplace(`C:\above\folder\q.exe`, func(path string) (*windows.SECURITY_DESCRIPTOR, error) {
			return windows.SecurityDescriptorFromString(map[string]string{`C:\`: c.drive, `C:\above`: c.above, `C:\above\folder`: c.folder, `C:\above\folder\q.exe`: c.program}[path])
		})
		if c.refused == "" && err != nil || c.refused != "" && (!errors.Is(err, queue.ErrWrongState) || !strings.HasPrefix(err.Error(), c.refused+" can be")) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	m := newManager(false)
	m.s.trusted = func(string) error { return queue.ErrWrongState }
	if err := m.s.Install(); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("got %v", err)
	}
	expect(t, "asked", m.takeCalls())
	m = newManager(false)
	m.s.folder = func(string, string) error { return queue.ErrWrongState }
	if err := m.s.Install(); !errors.Is(err, queue.ErrWrongState) || m.registered {
		t.Errorf("registered: %v, %v", m.registered, err)
	}
}
