package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// WhoamiVerb returns the command whoami. Only queuectld links it, to keep queuectl small.
func WhoamiVerb(app *App) *cobra.Command {
	a := admin{app}
	return &cobra.Command{
		Use: "whoami", Short: "Show your identity and rights", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.missingIsEmpty = true
			return answer(cmd.Context(), a.App, (*control.Client).Whoami, control.Nothing{}, func(w control.Whoami) error { return a.rows(13, whoamiRows(&w)) })
		},
	}
}

// Answering describes the service that answers: its owner and its socket.
func Answering(service, socket string) string { return service + ", socket " + socket }

// whoamiRows returns what whoami prints about a user: names and values.
func whoamiRows(w *control.Whoami) [][2]string {
	group := ""
	if w.GID >= 0 { // on Windows, GID is negative, because there are no group ids
		group = fmt.Sprintf("%s (%d)", w.Group, w.GID)
	}
	var groups, rights []string
	for _, g := range w.Groups {
		groups = append(groups, fmt.Sprintf("%s (%d)", g.Name, g.GID))
	}
	for _, r := range w.Rights {
		rights = append(rights, string(r))
	}
	if len(rights) == 0 {
		rights = []string{string(control.None)}
	}
	runs := w.JobsRunAs
	if runs != "" {
		runs += fmt.Sprintf(" (run_as = %q)", w.RunAs)
	}
	var quotas []string
	if w.MaxPending > 0 {
		quotas = append(quotas, fmt.Sprintf("at most %d waiting", w.MaxPending))
	}
	if w.MaxRunning > 0 {
		quotas = append(quotas, fmt.Sprintf("at most %d running", w.MaxRunning))
	}
	if w.MaxBytes > 0 {
		quotas = append(quotas, used(w.Bytes, w.MaxBytes))
	}
	return [][2]string{
		{"User", fmt.Sprintf("%s (%d)", w.User, w.UID)}, {"Group", group}, {"Groups", strings.Join(groups, ", ")},
		{"Rights", strings.Join(rights, ", ")}, {"Jobs run as", runs}, {"Your limits", strings.Join(quotas, ", ")}, {"Service", Answering(w.Service, w.Socket)}, {"Next", w.Next},
	}
}
