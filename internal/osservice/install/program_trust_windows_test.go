package install

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/queue"
)

// checkProgramNotReplaceable rejects a program if other accounts could change the program or its directory, or could
// move away one of the parent directories. It accepts a drive on which everyone may create directories.
func TestProgramWritableByOthersIsRejected(t *testing.T) {
	const (
		// drive is the access list that Windows creates for C:\.
		drive = "O:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1200a9;;;BU)(A;OICIIO;0x1301bf;;;AU)(A;;LC;;;AU)"
		// data is the access list of the root of another drive.
		data = "O:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;;0x1301bf;;;AU)(A;OICIIO;0x1301bf;;;AU)"
		// programs is the access list of C:\Program Files.
		programs = "O:BAD:(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;;0x1200a9;;;BU)(A;OICIIO;GRGX;;;BU)(A;OICIIO;GA;;;CO)"
		// made is the access list of a new directory in C:\.
		made  = "O:BAD:(A;OICI;FA;;;BA)(A;OICI;0x1301bf;;;AU)"
		users = "O:BUD:(A;OICI;FA;;;BA)"
		child = "O:BAD:(A;OICI;FA;;;BA)(A;;0x40;;;BU)"
	)
	for _, c := range []struct{ drive, above, dir, program, refused string }{
		{drive, programs, programs, programs, ""},
		{data, programs, programs, programs, ""},
		// C:\above has the access list of a drive: other accounts may create directories in it, but may change only those
		// that they have created.
		{drive, drive, programs, programs, ""},
		{drive, programs, programs, made, `C:\above\dir\q.exe`},
		{drive, programs, made, programs, `C:\above\dir`},
		{drive, programs, drive, programs, `C:\above\dir`},
		{drive, programs, users, programs, `C:\above\dir`},
		{drive, made, programs, programs, `C:\above`},
		{drive, child, programs, programs, `C:\above`},
		{drive, users, programs, programs, `C:\above`},
		{child, programs, programs, programs, `C:\`},
		{users, programs, programs, programs, `C:\`},
	} {
		err := checkProgramNotReplaceable(`C:\above\dir\q.exe`, func(path string) (*windows.SECURITY_DESCRIPTOR, error) {
			return windows.SecurityDescriptorFromString(map[string]string{`C:\`: c.drive, `C:\above`: c.above,
				`C:\above\dir`: c.dir, `C:\above\dir\q.exe`: c.program}[path])
		})
		if c.refused == "" && err != nil || c.refused != "" &&
			(!errors.Is(err, queue.ErrWrongState) || !strings.HasPrefix(err.Error(), c.refused+" can be")) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	m := newFakeServiceManager(false)
	m.service.checkProgramTrust = func(string) error { return queue.ErrWrongState }
	if err := m.service.Install(); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("got %v", err)
	}
	wantEqualLists(t, "asked", m.takeRecordedCalls())
	m = newFakeServiceManager(false)
	m.service.secureStateDir = func(string, string) error { return queue.ErrWrongState }
	if err := m.service.Install(); !errors.Is(err, queue.ErrWrongState) || m.registered {
		t.Errorf("registered: %v, %v", m.registered, err)
	}
}
