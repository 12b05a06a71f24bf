package cli

import (
	"slices"

	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
)

// printJobsTable prints a table of jobs. On a terminal it marks each job with the sign and the colour of the job's
// state.
func (a *App) printJobsTable(headings []string, rows [][]string) error {
	state := slices.Index(headings, "STATE")
	if state < 0 || !term.IsTerminal(a.Stdout) {
		return a.PrintTable(headings, rows)
	}
	for _, row := range rows {
		row[state] = present.SignOfState(row[state]).Symbol + " " + row[state]
	}
	return a.PrintColouredTable(headings, rows, func(column int, cell string) string {
		if column == state {
			cell = a.colourStateSign(cell, true)
		}
		return cell
	})
}
