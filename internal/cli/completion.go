package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// shells are those that completion is written for.
var shells = map[string]func(root *cobra.Command, a *App) error{
	"bash":       func(r *cobra.Command, a *App) error { return r.GenBashCompletionV2(a.Out, true) },
	"zsh":        func(r *cobra.Command, a *App) error { return r.GenZshCompletion(a.Out) },
	"fish":       func(r *cobra.Command, a *App) error { return r.GenFishCompletion(a.Out, true) },
	"powershell": func(r *cobra.Command, a *App) error { return r.GenPowerShellCompletionWithDesc(a.Out) },
}

func completionVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Print the completion script of a shell", Args: Exactly(1, "bash, zsh, fish or powershell"),
		Long: `Print the completion script of a shell. To have it in each session, put the line that
reads it into what the shell reads when it starts; for PowerShell: notepad $PROFILE

  bash        source <(queuectl completion bash)
  zsh         source <(queuectl completion zsh)
  fish        queuectl completion fish | source
  powershell  queuectl completion powershell | Out-String | Invoke-Expression`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			write := shells[args[0]]
			if write == nil {
				return Usage("there is no completion for %q%s", args[0], near(args[0], cmd.ValidArgs, "there is for bash, zsh, fish and powershell"))
			}
			return write(cmd.Root(), a)
		},
	}
}

// completeWithin bounds how long a shell waits for ids.
const completeWithin = time.Second

// completeIDs completes ids of jobs in these states, any if none are given; the
// newest first, with what they run. A service that does not answer gives none, and
// none is started.
func (a *App) completeIDs(states ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.idsIn(states, given, prefix), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// idsIn lists ids of jobs in some states, but those that are given already.
func (a *App) idsIn(states, given []string, prefix string) (ids []cobra.Completion) {
	c, err := a.Client()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
	defer cancel()
	page, err := c.List(ctx, control.List{State: states, Limit: control.SelectStep})
	if err != nil {
		return nil
	}
	for i := range page.Jobs {
		j := &page.Jobs[i]
		if strings.HasPrefix(j.ID, prefix) && !slices.Contains(given, j.ID) {
			ids = append(ids, cobra.CompletionWithDesc(j.ID, fmt.Sprintf("%s: %s", j.State, cut(sanitize(title(j)), 60))))
		}
	}
	return ids
}

// completeStates completes the names of states.
func completeStates(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names := []cobra.Completion{"waiting", "done"}
	for _, s := range queue.States() {
		names = append(names, s.String())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeKeys completes the first argument, a setting, with what it means, and the second one, of a setting that has few
// values.
func completeKeys(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) == 1 && cmd.Name() == "set" {
		if k, _, err := config.Find(given[0], ""); err == nil {
			return k.Values, cobra.ShellCompDirectiveNoFileComp
		}
	}
	var keys []cobra.Completion
	for i := range config.Keys() {
		if k := &config.Keys()[i]; len(given) == 0 && strings.HasPrefix(k.Name, prefix) {
			keys = append(keys, cobra.CompletionWithDesc(k.Name, k.Doc))
		}
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}
