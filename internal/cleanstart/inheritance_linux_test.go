package cleanstart

import (
	"slices"
	"testing"
)

// If the service was started within a systemd unit, DescribeInheritedAttributes reports that unit, because the service
// ends when the unit ends. It also reports the limits of the unit's control groups, but not the limits of the slices
// above the unit. It does not report the unit of the user's service manager.
func TestInheritedAttributesIncludeCallersUnit(t *testing.T) {
	files := map[string]string{
		"/system.slice/pids.max":                        "100",
		"/system.slice/cron.service/pids.max":           "4915",
		"/system.slice/cron.service/memory.max":         "max",
		"/system.slice/cron.service/job/cpu.max":        "50000 100000",
		"/user.slice/user-7.slice/session-1.scope/none": "",
	}
	read := func(file string) string { return files[file] }
	for own, want := range map[string][]string{
		"0::/system.slice/cron.service/job\n": {
			"the queuectl service runs in the control group of cron.service, so systemd also ends the service " +
				"when it stops this unit",
			"the limit cpu.max (50000 100000) of cron.service applies to all jobs together",
			"the limit pids.max (4915) of cron.service applies to all jobs together",
		},
		"0::/user.slice/user-7.slice/session-1.scope\n":                      nil,
		"0::/user.slice/user-7.slice/user@7.service/app.slice/shell.scope\n": nil,
		"1:name=systemd:/system.slice/cron.service\n":                        nil,
		"0::/\n": nil,
		"":       nil,
	} {
		if got := describeSystemdUnit(own, read); !slices.Equal(got, want) {
			t.Errorf("%q:\ngot  %q\nwant %q", own, got, want)
		}
	}
}

// The soft limit that ResetInheritedAttributes sets never exceeds the hard limit.
func TestSoftLimitNeverExceedsHardLimit(t *testing.T) {
	for _, l := range freshProcessResourceLimits {
		for _, hard := range []uint64{0, 1, 100, 1 << 40, unlimitedResourceLimit} {
			if got := l.defaultSoftLimit(hard); got > hard {
				t.Errorf("resource %d: soft limit %d, hard limit %d", l.rlimitNumber, got, hard)
			}
		}
	}
}

// SECBIT_NOROOT is reported if the process has inherited it from its caller, but not if it applies to the whole
// container. Other securebits take no capabilities from jobs.
func TestContainersSecurebitsAreNotReported(t *testing.T) {
	machine := procStatus{"Uid": "0\t0\t0\t0", "CapPrm": "000001ffffffffff", "CapBnd": "000001ffffffffff"}
	noRootContainer := procStatus{"Uid": "0\t0\t0\t0", "CapPrm": "0000000000000000", "CapBnd": "00000000a80425fb"}
	userContainer := procStatus{"Uid": "1000\t1000\t1000\t1000", "CapPrm": "0", "CapBnd": "00000000a80425fb"}
	const noRoot, noRootLocked, keepCapsLocked = 0x1, 0x2, 0x20
	for _, c := range []struct {
		securebits int
		initStatus procStatus
		reported   bool
	}{
		{0, machine, false},
		{keepCapsLocked, machine, false},
		{noRoot, machine, true},
		{noRoot | noRootLocked, nil, true},
		{noRoot | noRootLocked, userContainer, true},
		{noRoot | noRootLocked, noRootContainer, false},
	} {
		var list attributeDescriptions
		list.addSecurebits(c.securebits, c.initStatus)
		if reported := len(list) > 0; reported != c.reported {
			t.Errorf("securebits %#x, process 1 %v: got %q, want a report: %t", c.securebits, c.initStatus, list, c.reported)
		}
	}
}
