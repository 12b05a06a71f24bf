package cli

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/queuectl/queuectl/internal/termtext"
)

const (
	columnGap   = 2  // spaces between columns
	wholeColumn = 19 // a column no wider than a time is shown whole, if it is shown
	leastColumn = 10 // what others are cut to, before a column is left out
	leastChosen = 3  // what all are cut to, if a person chose them
)

// named prints a list of so many as a table, whose rows begin with a name, or those names alone under
// --quiet. Of a list that is empty it says so.
func (a *App) named(many int, empty string, head []string, row func(i int) []string) error {
	rows := make([][]string, many)
	for i := range rows {
		rows[i] = row(i)
	}
	switch {
	case a.Quiet:
		for _, r := range rows {
			if err := a.Println(r[0]); err != nil {
				return err
			}
		}
		return nil
	case len(rows) == 0:
		a.Say("%s", empty)
		return nil
	}
	if slices.Index(head, "QUEUE") > 0 { // which names none of them
		head, rows = withoutPlain(head, rows)
	}
	return a.table(head, rows)
}

// table prints rows under a head. On a terminal it fits: long cells are cut and, where
// that is not enough, columns left out, unless a person chose them. What colours a job's text has
// are left out, for here colours tell of states.
func (a *App) table(head []string, rows [][]string) error {
	return a.paintedTable(head, rows, func(_ int, cell string) string { return cell })
}

// paintedTable is table, whose cells are painted once they fit.
func (a *App) paintedTable(head []string, rows [][]string, paint func(column int, cell string) string) error {
	widths, limit := make([]int, len(head)), a.width(a.Out)
	rows = append([][]string{NameZones(head, rows)}, rows...)
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(a.said(row[i]))
			if i < len(row)-1 { // two spaces separate columns
				row[i] = strings.Join(strings.Fields(row[i]), " ")
			}
			if limit > 0 && !a.raw {
				row[i] = termtext.Unjoined(row[i])
			}
			widths[i] = max(widths[i], room(row[i]))
		}
	}
	if limit > 0 {
		widths = fit(widths, limit, a.chosen)
	}
	for _, line := range tableLines(rows, widths, paint) {
		if err := a.Println(line); err != nil {
			return err
		}
	}
	return nil
}

// tableLines are the lines of a table whose columns are so wide; one of width 0 is left out.
func tableLines(rows [][]string, widths []int, paint func(column int, cell string) string) (lines []string) {
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			cell = cut(cell, widths[i])
			b.WriteString(paint(i, cell))
			b.WriteString(strings.Repeat(" ", widths[i]-room(cell)+columnGap))
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// fit makes the columns of a table fit into so many of a terminal's. One that is left
// out gets 0. The first and the last one stay: what a row is about, and what it says.
func fit(widths []int, limit int, chosen bool) []int {
	got := make([]int, len(widths))
	used, shown := -columnGap, len(widths)
	for i, w := range widths {
		got[i] = w
		if chosen {
			got[i] = min(w, leastChosen)
		} else if w > wholeColumn {
			got[i] = leastColumn
		}
		used += got[i] + columnGap
	}
	for ; used > limit && shown > 2; shown-- {
		out, time := 0, false // the last one, of times if there are any
		for i := 1; i < len(got)-1; i++ {
			if wide := got[i] > leastColumn; got[i] > 0 && (wide || !time) {
				out, time = i, wide
			}
		}
		used -= got[out] + columnGap
		got[out] = 0
	}
	for ; used > limit; used-- { // two are left: the wider one is cut on
		first, last := &got[0], &got[len(got)-1]
		if *first > *last {
			last = first
		}
		*last--
	}
	for ; used < limit; used++ { // what is free goes to the narrowest that is cut
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

// room is how many columns a text takes on a terminal: colours take none.
func room(s string) (n int) {
	for len(s) > 0 {
		_, k, columns := next(s)
		s = s[k:]
		n += columns
	}
	return n
}

// cut shortens a text to n columns. No colour is cut in two, or left on, and no sign
// parted from the letter that it stands on.
func cut(s string, n int) string {
	if room(s) <= n {
		return s
	}
	mark := Sign("…")
	if room(mark) > n { // it is ASCII
		mark = mark[:max(0, n)]
	}
	kept := n - room(mark)
	var b strings.Builder
	last := ""
	for seen := 0; seen < kept; {
		painted, k, columns := next(s)
		if seen += columns; seen > kept {
			break
		}
		if painted {
			last = uncolour
		}
		b.WriteString(s[:k])
		s = s[k:]
	}
	return b.String() + mark + last
}

// folded breaks texts into lines of so many columns at most, between words where there are any.
func folded(width int, texts ...string) (lines []string) {
	for _, text := range texts {
		for room(text) > width && width > 0 {
			end, space, seen := 0, 0, 0
			for end < len(text) {
				_, k, columns := next(text[end:])
				if seen += columns; seen > width {
					break
				}
				if text[end] == ' ' {
					space = end
				}
				end += k
			}
			if end < len(text) && text[end] == ' ' {
				space = end
			}
			if space > 0 {
				end = space
			}
			lines = append(lines, strings.TrimRight(text[:end], " "))
			text = strings.TrimLeft(text[end:], " ")
		}
		lines = append(lines, text)
	}
	return lines
}

// next is what a text begins with: a colour, or a character with the signs that
// stand on it, its length in bytes and the columns that it takes.
func next(s string) (painted bool, length, columns int) {
	if k := termtext.Colour(s); k > 0 {
		return true, k, 0
	}
	r, length := utf8.DecodeRuneInString(s)
	columns = termtext.Columns(r)
	for length < len(s) {
		r, k := utf8.DecodeRuneInString(s[length:])
		if r < 0x300 || termtext.Columns(r) > 0 {
			break
		}
		if r == emojiSign {
			columns = 2
		}
		length += k
	}
	return false, length, columns
}

// emojiSign makes a character an emoji, which is wide.
const emojiSign = 0xfe0f
