package present

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
)

// WhoamiRows returns the names and values that "queuectl whoami" prints about a user.
func WhoamiRows(w *control.WhoamiResult) [][2]string {
	group := ""
	if w.GID >= 0 { // Windows has no group ids, so GID is negative there
		group = fmt.Sprintf("%s (%d)", w.Group, w.GID)
	}
	var groups, rights []string
	for _, g := range w.Groups {
		groups = append(groups, fmt.Sprintf("%s (%d)", g.Name, g.GID))
	}
	for _, r := range w.IncludedRights {
		rights = append(rights, string(r))
	}
	if len(rights) == 0 {
		rights = []string{string(control.RightNone)}
	}
	runs := w.JobsRunAs
	if runs != "" {
		runs += fmt.Sprintf(" (run_as = %q)", w.RunAsSetting)
	}
	var quotas []string
	if w.MaxPendingJobs > 0 {
		quotas = append(quotas, fmt.Sprintf("at most %d waiting", w.MaxPendingJobs))
	}
	if w.MaxRunningJobs > 0 {
		quotas = append(quotas, fmt.Sprintf("at most %d running", w.MaxRunningJobs))
	}
	if w.MaxStoredBytes > 0 {
		quotas = append(quotas, ByteUsageText(w.StoredBytes, w.MaxStoredBytes)+" by your jobs")
	}
	return [][2]string{
		{"User", fmt.Sprintf("%s (%d)", w.User, w.UID)}, {"Group", group}, {"Groups", strings.Join(groups, ", ")},
		{"Rights", strings.Join(rights, ", ")}, {"Jobs run as", runs}, {"Your limits", strings.Join(quotas, ", ")},
		{"Service", DescribeService(w.ServiceKind, w.SocketPath)}, {"Next", w.Advice},
	}
}
