package termtext

import (
	"slices"
	"strings"
)

const (
	columnGap                = 2  // spaces between columns
	maxUncutColumnWidth      = 19 // a column of at most this width, the width of a time, is never cut
	minColumnWidth           = 10 // wider columns are cut to this width before a column is omitted
	minUserChosenColumnWidth = 3  // a column that the user chose can be cut to this width, but is never omitted
)

// LayOutTable returns the lines of a table with the given column widths. It omits columns of width 0, and calls
// colourCell to colour each cell.
func LayOutTable(rows [][]string, widths []int, colourCell func(column int, cell string) string) (lines []string) {
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			cell = Truncate(cell, widths[i])
			b.WriteString(colourCell(i, cell))
			b.WriteString(strings.Repeat(" ", widths[i]-DisplayWidth(cell)+columnGap))
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// ColumnWidths returns the width of each column of a table.
func ColumnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], DisplayWidth(cell))
		}
	}
	return widths
}

// FitColumnWidths computes column widths with which the table fits into terminalColumns columns. A width of 0 means
// that the column is omitted. FitColumnWidths never omits the first and the last column, which hold the row's name and
// its main text. If columnsChosenByUser is true, it omits no column.
//
// For example, columns of widths 2, 10, 8, 8, 19 and 100 must fit into 40 columns of the terminal. They get the
// widths 2, 10, 8, 0, 0 and 14: FitColumnWidths omits two columns and cuts the last one.
func FitColumnWidths(widths []int, terminalColumns int, columnsChosenByUser bool) []int {
	got := make([]int, len(widths))
	used, shown := -columnGap, len(widths)
	for i, w := range widths {
		got[i] = w
		if columnsChosenByUser {
			got[i] = min(w, minUserChosenColumnWidth)
		} else if w > maxUncutColumnWidth {
			got[i] = minColumnWidth
		}
		used += got[i] + columnGap
	}
	for ; used > terminalColumns && shown > 2; shown-- {
		// Omit the last uncut column that is wider than minColumnWidth, such as a time. If no column is that wide, omit the
		// last column that may be omitted.
		out, time := 0, false
		for i := 1; i < len(got)-1; i++ {
			if wide := got[i] > minColumnWidth; got[i] > 0 && (wide || !time) {
				out, time = i, wide
			}
		}
		used -= got[out] + columnGap
		got[out] = 0
	}
	// no further column can be omitted, so cut the wider one of the first and the last column
	for ; used > terminalColumns; used-- {
		first, last := &got[0], &got[len(got)-1]
		if *first > *last {
			last = first
		}
		*last--
	}
	for ; used < terminalColumns; used++ { // give each unused column of the terminal to the narrowest cut column
		next := -1
		for i := range got {
			if got[i] > 0 && got[i] < widths[i] && (next < 0 || got[i] < got[next]) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		got[next]++
	}
	return got
}

// TableLines returns the lines of a table, beginning with the heading, for a terminal with terminalColumns columns.
// Cells are untrusted text. TableLines cuts long cells and, if necessary, omits columns.
func TableLines(terminalColumns int, headings []string, rows [][]string) []string {
	shown := [][]string{headings}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = TerminalSafeText(cell)
		}
		shown = append(shown, cells)
	}
	return LayOutTable(shown, FitColumnWidths(ColumnWidths(shown), terminalColumns, false),
		func(_ int, cell string) string { return cell })
}

// MinTableWidth is the smallest number of columns for which tables are laid out. In a narrower window, the terminal
// wraps the lines.
const MinTableWidth = 20

// HeadingZonePlaceholder marks the heading of a column of times, until MoveZonesToHeadings replaces it by the time
// zone.
const HeadingZonePlaceholder = " (ZONE)"

// MoveZonesToHeadings moves the time zone from the times of a column to the column's heading. If the zones of a
// column differ, for example in summer and winter, each time keeps its zone. MoveZonesToHeadings changes rows
// and returns the new headings.
func MoveZonesToHeadings(headings []string, rows [][]string) []string {
	headings = slices.Clone(headings)
	for i := range headings {
		name, ok := strings.CutSuffix(headings[i], HeadingZonePlaceholder)
		if !ok {
			continue
		}
		headings[i] = name
		if zone := commonTimeZone(rows, i); zone != "" {
			headings[i] += " (" + zone + ")"
			for _, row := range rows {
				row[i] = strings.TrimSuffix(row[i], " "+zone)
			}
		}
	}
	return headings
}

// commonTimeZone returns the zone at the end of every time in a column. It returns "" if the zones differ
// or the column contains no time.
func commonTimeZone(rows [][]string, column int) (zone string) {
	for _, row := range rows {
		cell := row[column]
		if cell == "-" {
			continue
		}
		own := cell[strings.LastIndexByte(cell, ' ')+1:]
		if zone != "" && own != zone {
			return ""
		}
		zone = own
	}
	return zone
}
