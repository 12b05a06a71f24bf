package term

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
)

// PrintTable prints a list as JSON if the user asked for JSON. Otherwise it prints a table, or emptyText if the list is
// empty. makeRow returns the row of an element, whose first cell is a name. With --quiet, PrintTable prints only the
// names.
func PrintTable[T any](o *Output, list []T, emptyText string, headings []string,
	makeRow func(*T) []string) (err error) {
	if o.WantsJSON() {
		return PrintJSONList(o, list)
	}
	rows := make([][]string, len(list))
	for i := range list {
		rows[i] = makeRow(&list[i])
	}
	switch {
	case o.Quiet:
		for _, r := range rows {
			err = o.Println(r[0])
		}
		return err
	case len(rows) == 0:
		return o.PrintTerminalMessage("%s", emptyText)
	}
	// Keep the column QUEUE if it is the first one, as in a table of queues.
	if slices.Index(headings, "QUEUE") > 0 {
		headings, rows = present.DropUninformativeColumns(headings, rows)
	}
	return o.PrintTable(headings, rows)
}

// PrintTable prints rows under headings. On a terminal it fits the table to the width: it cuts long cells
// and, if necessary, omits columns that the user did not choose. On a terminal it also removes the colours of
// jobs' texts, because queuectl marks states with colours.
func (o *Output) PrintTable(headings []string, rows [][]string) error {
	return o.PrintColouredTable(headings, rows, func(_ int, cell string) string { return cell })
}

// PrintColouredTable prints a table like PrintTable. It cuts each cell to the width of its column, and then calls
// colourCell(column, cell), which returns the cell with colours.
func (o *Output) PrintColouredTable(headings []string, rows [][]string,
	colourCell func(column int, cell string) string) (err error) {
	limit := TerminalColumns(o.Stdout)
	rows = append([][]string{termtext.MoveZonesToHeadings(headings, rows)}, rows...)
	for _, row := range rows {
		for i := range row {
			row[i] = termtext.OneLine(o.EscapeJobText(row[i]))
			// Two spaces separate columns, so replace each run of spaces in a cell by one space.
			if i < len(row)-1 {
				row[i] = strings.Join(strings.Fields(row[i]), " ")
			}
			if limit > 0 && !o.KeepControlCharacters {
				row[i] = termtext.RemoveJoiners(row[i])
			}
		}
	}
	widths := termtext.ColumnWidths(rows)
	if limit > 0 {
		widths = termtext.FitColumnWidths(widths, limit, o.ColumnsChosenByUser)
	}
	for _, line := range termtext.LayOutTable(rows, widths, colourCell) {
		err = o.Println(line)
	}
	return err
}

// RedrawScreen calls printList, which prints a list. On a terminal it writes the new list over the previous one in
// one piece, so that the screen does not flicker.
func (o *Output) RedrawScreen(printList func() error) error {
	if !IsTerminal(o.Stdout) {
		return printList()
	}
	o.pendingScreenFrame = bytes.NewBufferString(time.Now().Format("15:04:05") + "\n")
	defer func() { o.pendingScreenFrame = nil }()
	if err := printList(); err != nil {
		return err
	}
	width, drawn := TerminalColumns(o.Stdout), "\x1b[H"
	for _, line := range termtext.WrapLines(width, strings.Split(strings.TrimSuffix(o.pendingScreenFrame.String(), "\n"),
		"\n")...) {
		// \x1b[K erases from the cursor to the end of the line. After a full line, the cursor is still on the
		// last character, so erasing would remove that character.
		if drawn += line; termtext.DisplayWidth(line) < width {
			drawn += "\x1b[K"
		}
		drawn += "\r\n"
	}
	_, err := o.Stdout.WriteString(drawn + "\x1b[J")
	return err
}
