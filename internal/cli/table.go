package cli

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/queuectl/queuectl/internal/termtext"
)

const (
	columnGap   = 2  // spaces between columns
	wholeColumn = 19 // a column of at most this width is never cut; it is the width of a time
	leastColumn = 10 // wider columns are cut to this width before a column is omitted
	leastChosen = 3  // if the user chose the columns, each can be cut to this width, and none is omitted
)

// named prints a table whose number of rows is the parameter many. The first cell of each row is a
// name; with --quiet, named prints only the names. Without rows, it prints the text in the
// parameter empty.
func (o *Output) named(many int, empty string, head []string, row func(i int) []string) error {
	rows := make([][]string, many)
	for i := range rows {
		rows[i] = row(i)
	}
	switch {
	case o.Quiet:
		for _, r := range rows {
			if err := o.Println(r[0]); err != nil {
				return err
			}
		}
		return nil
	case len(rows) == 0:
		o.Say("%s", empty)
		return nil
	}
	// In a table of queues, QUEUE is the first column and must not be removed.
	if slices.Index(head, "QUEUE") > 0 {
		head, rows = withoutPlain(head, rows)
	}
	return o.table(head, rows)
}

// table prints rows under a heading. On a terminal it fits the width: long cells are cut and, if
// that is not enough, columns are omitted, unless the user chose them. Colours in a job's text are
// removed, because queuectl's colours show states.
func (o *Output) table(head []string, rows [][]string) error {
	return o.paintedTable(head, rows, func(_ int, cell string) string { return cell })
}

// paintedTable prints a table like table does, and colours each cell, after it has been cut, with
// the function in the parameter paint.
func (o *Output) paintedTable(head []string, rows [][]string, paint func(column int, cell string) string) error {
	widths, limit := make([]int, len(head)), columnCount(o.Out)
	rows = append([][]string{NameZones(head, rows)}, rows...)
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(o.cleanText(row[i]))
			// Columns are separated by two spaces, so a cell must not contain two in a row.
			if i < len(row)-1 {
				row[i] = strings.Join(strings.Fields(row[i]), " ")
			}
			if limit > 0 && !o.raw {
				row[i] = termtext.Unjoined(row[i])
			}
			widths[i] = max(widths[i], Width(row[i]))
		}
	}
	if limit > 0 {
		widths = fit(widths, limit, o.ownColumns)
	}
	for _, line := range tableLines(rows, widths, paint) {
		if err := o.Println(line); err != nil {
			return err
		}
	}
	return nil
}

// tableLines returns the lines of a table with the given column widths. It omits columns of width
// 0.
func tableLines(rows [][]string, widths []int, paint func(column int, cell string) string) (lines []string) {
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			cell = Cut(cell, widths[i])
			b.WriteString(paint(i, cell))
			b.WriteString(strings.Repeat(" ", widths[i]-Width(cell)+columnGap))
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// fit computes column widths so that the table fits into limit columns of the terminal. An omitted
// column gets 0. fit never omits the first and the last column, which hold the row's name and its
// main text.
//
// For example, six cells of widths 2, 10, 8, 8, 19 and 100 must fit into 40 columns. They get the
// widths 2, 10, 8, 0, 0 and 14: two are omitted, and the last one is cut.
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
		// Omit the last column of times or, without such a column, the last one that may be omitted.
		out, time := 0, false
		for i := 1; i < len(got)-1; i++ {
			if wide := got[i] > leastColumn; got[i] > 0 && (wide || !time) {
				out, time = i, wide
			}
		}
		used -= got[out] + columnGap
		got[out] = 0
	}
	for ; used > limit; used-- { // only two columns remain, so cut the wider one further
		first, last := &got[0], &got[len(got)-1]
		if *first > *last {
			last = first
		}
		*last--
	}
	for ; used < limit; used++ { // give each free column of the terminal to the narrowest column that was cut
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

// Width returns how many columns a text takes on a terminal. Colour sequences take none.
func Width(s string) (n int) {
	for len(s) > 0 {
		_, k, columns := next(s)
		s = s[k:]
		n += columns
	}
	return n
}

// Cut shortens a text to n columns. It does not split a colour sequence or separate a combining
// mark from its letter. At the end of the text, no colour is active.
func Cut(s string, n int) string {
	if Width(s) <= n {
		return s
	}
	mark := Sign("…")
	if Width(mark) > n { // the mark is wider than n only if it is ASCII, "..."
		mark = mark[:max(0, n)]
	}
	kept := n - Width(mark)
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

// Fold breaks texts into lines of at most width columns, between words if possible.
func Fold(width int, texts ...string) (lines []string) {
	for _, text := range texts {
		for Width(text) > width && width > 0 {
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

// next returns the length in bytes and the columns of the first unit of a text: a colour sequence,
// or a character with its combining marks.
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

// emojiSign is the variation selector that makes a character an emoji, which is two columns wide.
const emojiSign = 0xfe0f
