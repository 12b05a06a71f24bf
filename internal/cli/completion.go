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

// shells maps each supported shell to the function that prints its completion script.
var shells = map[string]func(root *cobra.Command, a admin) error{
	"bash":       bash,
	"zsh":        func(r *cobra.Command, a admin) error { return r.GenZshCompletion(a.Out) },
	"fish":       func(r *cobra.Command, a admin) error { return r.GenFishCompletion(a.Out, true) },
	"powershell": func(r *cobra.Command, a admin) error { return r.GenPowerShellCompletionWithDesc(a.Out) },
}

// bashAlone replaces the functions that cobra's script needs from the package bash-completion, for
// systems without that package.
const bashAlone = `__queuectl_words()
{
    if declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref "$@"
        return
    fi
    local line=$COMP_LINE i word # bash splits words at = and :, which belong to them here
    words=() cword=0
    for i in "${!COMP_WORDS[@]}"; do
        word=${COMP_WORDS[i]}
        if [[ $i -gt 0 && $line != [[:space:]]* && ( $word == [=:]* || ${words[${#words[@]}-1]} == *[=:] ) ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
        line=${line#"${line%%[![:space:]]*}"}
        line=${line#"$word"}
        if [[ $i -eq $COMP_CWORD ]]; then
            cword=$((${#words[@]}-1))
        fi
    done
    cur=${words[cword]} prev=${words[cword-1]}
}

__queuectl_filedir()
{
    if declare -F _filedir >/dev/null; then
        _filedir "$@"
        return
    fi
    compopt -o filenames 2>/dev/null
    if [[ ${1-} == -d ]]; then
        COMPREPLY+=($(compgen -d -- "$cur"))
    else
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
`

// bash prints cobra's script, which calls the functions in bashAlone instead of those of
// bash-completion.
func bash(r *cobra.Command, a admin) error {
	var script strings.Builder
	if err := r.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	text := strings.NewReplacer("    _get_comp_words_by_ref ", "    __queuectl_words ", " _filedir", " __queuectl_filedir", `"_filedir`, `"__queuectl_filedir`).Replace(script.String())
	return a.Println(bashAlone + "\n" + strings.TrimSuffix(text, "\n"))
}

// CompletionVerb returns the command `completion`. Only queuectld links it, to keep queuectl small.
func CompletionVerb(app *App) *cobra.Command {
	a := admin{app}
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Print a shell completion script", Args: Exactly(1, "one shell (bash, zsh, fish or powershell)"),
		Long: `Print a shell completion script. To use it in every session, add the line for
your shell to its startup file (PowerShell: open it with notepad $PROFILE).

  bash        source <(queuectl completion bash)
  zsh         source <(queuectl completion zsh)
  fish        queuectl completion fish | source
  powershell  queuectl completion powershell | Out-String | Invoke-Expression`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.Structured() {
				return Usage("a completion script cannot be printed as JSON; leave out --json")
			}
			write := shells[args[0]]
			if write == nil {
				return Usage("there is no completion script for the shell %q%s", args[0], near(args[0], cmd.ValidArgs, "use bash, zsh, fish or powershell"))
			}
			return write(cmd.Root(), a)
		},
	}
}

// completeWithin bounds how long a shell waits for completions.
const completeWithin = time.Second

// completeIDs completes ids of jobs in these states, or in any state if states is empty. It offers
// the newest first, with their commands. It offers nothing if the service does not answer, and does
// not start one.
func (a *App) completeIDs(states ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.idsIn(states, given, prefix), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// idsIn returns the ids of jobs in these states, except those in given.
func (a *App) idsIn(states, given []string, prefix string) (ids []cobra.Completion) {
	for _, j := range a.newest(states) {
		if strings.HasPrefix(j.ID, prefix) && !slices.Contains(given, j.ID) {
			ids = append(ids, cobra.CompletionWithDesc(j.ID, fmt.Sprintf("%s: %s", j.State, Cut(sanitize(Title(&j)), 60))))
		}
	}
	return ids
}

// newest returns the newest jobs in these states. It returns none if the service does not answer in
// time.
func (a *App) newest(states []string) []control.Job {
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
	return page.Jobs
}

// completeFlags adds completion to the flags of a command, and of its subcommands, that name
// queues, nodes, batches and jobs.
func (a *App) completeFlags(cmd *cobra.Command) {
	for flag, complete := range map[string]cobra.CompletionFunc{
		"queue": a.completeQueues, "where-queue": a.completeQueues,
		"on":    a.completeNodes,
		"batch": a.completeBatches, "after-batch": a.completeBatches,
		"after": a.completeList, "after-any": a.completeList, "depends-on": a.completeList,
	} {
		// This call fails if the command does not have the flag, or if the flag has a completion already.
		cmd.RegisterFlagCompletionFunc(flag, complete)
	}
	for _, below := range cmd.Commands() {
		a.completeFlags(below)
	}
}

// completeList completes the last id in a list of unfinished jobs.
func (a *App) completeList(_ *cobra.Command, _ []string, typed string) (lists []cobra.Completion, _ cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	for _, id := range a.idsIn([]string{"waiting", "processing"}, strings.Split(before, ","), typed[len(before):]) {
		lists = append(lists, before+id)
	}
	return lists, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeBatches completes the names of the newest jobs' batches. It omits names with characters
// that control a terminal.
func (a *App) completeBatches(_ *cobra.Command, _ []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	for _, j := range a.newest(nil) {
		if name := j.Labels["batch"]; name != "" && sanitize(name) == name && strings.HasPrefix(name, typed) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeStates completes the names of states.
func completeStates(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names := []cobra.Completion{"waiting", "done"}
	for _, s := range queue.States() {
		names = append(names, s.String())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeKeys completes the first argument, a setting, with its description. If the setting has
// few values, completeKeys also completes the second argument.
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
