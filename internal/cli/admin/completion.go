package admin

import (
	"context"
	_ "embed"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
)

// completionScriptPrinters maps each supported shell to the function that prints its completion script.
var completionScriptPrinters = map[string]func(root *cobra.Command, a adminCommands) error{
	"bash":       printBashCompletion,
	"zsh":        func(r *cobra.Command, a adminCommands) error { return r.GenZshCompletion(a.Stdout) },
	"fish":       func(r *cobra.Command, a adminCommands) error { return r.GenFishCompletion(a.Stdout, true) },
	"powershell": func(r *cobra.Command, a adminCommands) error { return r.GenPowerShellCompletionWithDesc(a.Stdout) },
}

// bashCompletionFallback contains functions for systems without the package bash-completion. They replace the functions
// of that package that cobra's script calls.
//
//go:embed completion.bash
var bashCompletionFallback string

// printBashCompletion prints cobra's script, changed so that it calls the functions in bashCompletionFallback and needs
// no package bash-completion.
func printBashCompletion(root *cobra.Command, a adminCommands) error {
	var script strings.Builder
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	text := strings.NewReplacer("    _get_comp_words_by_ref ", "    __queuectl_words ", " _filedir", " __queuectl_filedir",
		`"_filedir`, `"__queuectl_filedir`).Replace(script.String())
	return a.Println(bashCompletionFallback + "\n" + strings.TrimSuffix(text, "\n"))
}

// CompletionVerb returns the command "queuectl completion".
func CompletionVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	cmd := cli.NewCommand("completion bash|zsh|fish|powershell", "Print a shell completion script",
		cli.ExactArgs(1, "one shell (bash, zsh, fish or powershell)"), func(_ context.Context, args []string) error {
			if a.WantsJSON() {
				return fault.Usagef("a completion script cannot be printed as JSON; leave out --json")
			}
			write := completionScriptPrinters[args[0]]
			if write == nil {
				return fault.Usagef("there is no completion script for the shell %q%s", args[0],
					hints.SimilarWordHint(args[0], a.Cmd.ValidArgs, "use bash, zsh, fish or powershell"))
			}
			return write(a.Cmd.Root(), a)
		})
	cmd.ValidArgs = []string{"bash", "zsh", "fish", "powershell"}
	return cmd
}

// completeSettingNames completes the first argument, the name of a setting, and offers its description. If the
// setting has few values, completeSettingNames also completes the second argument.
func completeSettingNames(cmd *cobra.Command, typedArgs []string, prefix string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(typedArgs) == 1 && cmd.Name() == "set" {
		if k, _, err := config.FindSetting(typedArgs[0], ""); err == nil {
			return k.ValidValues, cobra.ShellCompDirectiveNoFileComp
		}
	}
	var keys []cobra.Completion
	for _, k := range config.AllSettings() {
		if len(typedArgs) == 0 && strings.HasPrefix(k.Name, prefix) {
			keys = append(keys, cobra.CompletionWithDesc(k.Name, k.Description()))
		}
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}
