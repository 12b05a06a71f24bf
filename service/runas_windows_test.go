package service

import (
	"errors"
	"os/user"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

// On Windows, jobs run only as the service's own account. The setting run_as may be "service" or the name of that
// account. If a service manager starts the service, one of these two values is the default of run_as. Any other value
// is rejected with the reason.
func TestWindowsRejectsOtherRunAsAccounts(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for runAs, why := range map[string]string{
		"": "", "service": "", "fixed:" + me.Username: "", "fixed:" + strings.ToUpper(me.Username): "",
		"submitter": "without that user's password", `fixed:NT AUTHORITY\LocalService`: "service install --user",
	} {
		for _, m := range []*ServiceManager{nil, {}} {
			o := Options{ServiceManager: m, Paths: config.PathsInDir(t.TempDir()), FlagSettings: map[string]string{}}
			if runAs != "" {
				o.FlagSettings["run_as"] = runAs
			}
			s, err := readStartupSettings(o)
			if err != nil {
				t.Fatal(runAs, err)
			}
			set := &s.Settings.CurrentConfig().Settings
			want := config.RunAsService
			if m != nil {
				want = "fixed:" + me.Username
			}
			if runAs == "" && (set.RunAs != want || s.Settings.CurrentConfig().OriginInEffect("run_as") != config.FromDefault) {
				t.Errorf("the default is %s, want %s", set.RunAs, want)
			}
			a, err := s.jobAccount(set)
			if why == "" && (err != nil || a.UserName != me.Username) || why != "" &&
				(!errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), why)) {
				t.Errorf("%s: %+v, %v", runAs, a, err)
			}
		}
	}
}
