package cli

import (
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/input"
)

// RequireFlag adds the flag --require-limits, which rejects jobs whose limits cannot be enforced.
func (a *App) RequireFlag(f *pflag.FlagSet) {
	f.BoolVar(&a.RequireLimits, "require-limits", false, "reject jobs with limits that this machine cannot enforce, instead of warning")
	f.Lookup("require-limits").Annotations = map[string][]string{input.ThemeOf: {input.ThemeLimits}}
}
