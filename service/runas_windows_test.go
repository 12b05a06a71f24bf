package service

import (
	"errors"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

// Jobs run as the service's own account alone: as service, or by its name. A managed one
// has that by default, and says who it is. All else is refused with the reason.
func TestRunAsOnWindows(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for runAs, why := range map[string]string{
		"": "", "service": "", "fixed:" + me.Username: "", "fixed:" + strings.ToUpper(me.Username): "",
		"submitter": "without that user's password", `fixed:NT AUTHORITY\LocalService`: "service install --user",
	} {
		for _, m := range []*Manager{nil, {}} {
			s := &Service{opt: Options{Manager: m, Places: config.In(t.TempDir()), Flags: map[string]string{}}}
			if runAs != "" {
				s.opt.Flags["run_as"] = runAs
			}
			if err := s.readSettings(); err != nil {
				t.Fatal(runAs, err)
			}
			set := &s.config.Load().Settings
			want := config.RunAsService
			if m != nil {
				want = "fixed:" + me.Username
			}
			if runAs == "" && (set.RunAs != want || s.config.Load().Origin("run_as") != config.FromDefault) {
				t.Errorf("the default is %s, want %s", set.RunAs, want)
			}
			a, err := s.accountBy(set)
			if why == "" && (err != nil || a.User != me.Username) || why != "" && (!errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), why)) {
				t.Errorf("%s: %+v, %v", runAs, a, err)
			}
		}
	}
}

// A state folder that is made lets nobody else in, whatever the one above does.
func TestStateFolderIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := mkdirPrivate(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkFolder(dir); err != nil {
		t.Error(err)
	}
	if list := examinePlaces(config.In(dir), 0); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

// A state folder is refused that belongs to somebody else, who could change it at any time,
// or that others may change: to look into it may be let.
func TestStateFolderOfOthers(t *testing.T) {
	for sddl, why := range map[string]string{
		"O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)": "", "O:SYD:P(A;;FA;;;S-1-5-80-1-2-3-4-5)(A;OICIIO;FA;;;CO)(A;;FR;;;BU)": "",
		"O:BUD:P(A;;FA;;;BA)": "belongs to", "O:S-1-5-80-0D:P(A;;FA;;;BA)": "belongs to", "D:P(A;;FA;;;BA)": "no owner",
		"O:BAD:P(A;;FW;;;BU)": "by others", "O:BAD:P(A;OICIIO;FA;;;S-1-5-80-0)": "by others",
	} {
		sd, err := windows.SecurityDescriptorFromString(sddl)
		if err != nil {
			t.Fatal(sddl, err)
		}
		if err := checkAccess(`C:\q`, sd); (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", sddl, err, why)
		}
	}
}
