package admin

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli"
)

// If a flag cannot parse its value, the error names the flag and says what to write. The error contains no
// texts of Go's libraries. This test covers the commands of this package.
func TestFlagErrorsNameFlagAndFormat(t *testing.T) {
	own := []cli.Verb{
		{Name: "edit", BuildCommand: EditVerb}, {Name: "queue", BuildCommand: QueueVerb},
		{Name: "schedule", BuildCommand: ScheduleVerb},
		{Name: "gate", BuildCommand: GateVerb}, {Name: "hook", BuildCommand: HookVerb},
		{Name: "node", BuildCommand: NodeVerb},
		{Name: "events", BuildCommand: EventsVerb}, {Name: "stats", BuildCommand: StatsVerb},
		{Name: "simulate", BuildCommand: SimulateVerb},
		{Name: "tree", BuildCommand: TreeVerb}, {Name: "cleanup", BuildCommand: CleanupVerb},
		{Name: "config", BuildCommand: ConfigVerb},
		{Name: "backup", BuildCommand: BackupVerb}, {Name: "web", BuildCommand: WebVerb},
		{Name: "reload", BuildCommand: ReloadVerb},
	}
	values := []string{"", "-1", "x", "NaN", "99999999999999999999", "\xff", strings.Repeat("x", 70_000)}
	refused := 0
	var check func(at []string, cmd *cobra.Command)
	check = func(at []string, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			for _, value := range values {
				a := cli.NewApp(cli.Program{Verbs: own}, nil, nil, nil)
				one, _, err := a.RootCommand(at).Find(at)
				if err != nil {
					t.Fatal(err)
				}
				err = one.ParseFlags([]string{"--" + f.Name + "=" + value})
				if err == nil {
					continue
				}
				refused++
				text := one.FlagErrorFunc()(one, err).Error()
				prefix := "--" + f.Name + ": "
				if !strings.HasPrefix(text, prefix) || !strings.Contains(text, "; ") ||
					strings.Contains(text, "strconv") || strings.Contains(text, "parsing") || len(text) > 1000 {
					t.Errorf("%s --%s=%.20q: %.300s", strings.Join(at, " "), f.Name, value, text)
				}
			}
		})
		for _, below := range cmd.Commands() {
			check(append(at[:len(at):len(at)], below.Name()), below)
		}
	}
	for _, cmd := range cli.NewApp(cli.Program{Verbs: own}, nil, nil, nil).RootCommand(nil).Commands() {
		check([]string{cmd.Name()}, cmd)
	}
	if refused < 500 {
		t.Errorf("only %d values were refused", refused)
	}
}
