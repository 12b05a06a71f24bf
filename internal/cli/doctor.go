package cli

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// PrintFinding prints one finding of doctor.
func (a *App) PrintFinding(f *control.Finding) error {
	level := f.Level
	if level != "ok" {
		level = strings.ToUpper(level)
	}
	text := f.Message
	if f.Advice != "" {
		text += "\n" + f.Advice
	}
	return a.Println(fmt.Sprintf("%-7s  %-11s  %s", level, f.Check, termtext.Indent(a.EscapeFor(a.Stdout, text), 22)))
}
